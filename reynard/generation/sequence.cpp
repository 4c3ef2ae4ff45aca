#include "reynard/generation/sequence.h"

#include "reynard/models/decoder.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reynard::generation {

namespace {

// The longest piece of text that is looked up; down to one token.
constexpr int64_t kLookupLength = 3;

}  // namespace

void check_options(const SequenceOptions& options) {
  using tensor::check_value;
  check_value(options.max_tokens >= 0, "generate", "max_tokens", options.max_tokens, ">= 0");
  for (const ScoreOptions& scores : {options.scores, options.prompt_scores}) {
    check_value(scores.num_top >= 0, "generate", "top log-probabilities", scores.num_top, ">= 0");
  }
  // Going back over wrong guesses needs the carries of the token shift.
  check_value(
      options.lookup_tokens >= 0 && options.lookup_tokens < models::SequenceState::kCarryTokens,
      "generate",
      "lookup_tokens",
      options.lookup_tokens,
      fmt::format("0 (off) to {}", models::SequenceState::kCarryTokens - 1));
  const Sampler checked(options.sampler);
}

void check_sequence(const models::Decoder& decoder,
                    std::span<const int64_t> prompt,
                    const SequenceOptions& options) {
  using tensor::check_value;
  check_options(options);
  check_value(!prompt.empty(), "generate", "prompt tokens", int64_t{0}, "at least 1");
  const int64_t vocabulary = decoder.config().vocab_size;
  const auto is_known = [&](int64_t token) { return token >= 0 && token < vocabulary; };
  for (const int64_t token : prompt) {
    check_value(is_known(token),
                "generate",
                "prompt token",
                token,
                fmt::format("an id of the model's vocabulary, 0 to {}", vocabulary - 1));
  }
  for (const LogitBias& entry : options.sampler.logit_bias) {
    check_value(is_known(entry.token),
                "generate",
                "logit_bias token",
                entry.token,
                fmt::format("an id of the model's vocabulary, 0 to {}", vocabulary - 1));
  }
}

Sequence::Sequence(const models::Decoder& decoder,
                   const std::shared_ptr<attention::PagePool>& pool,
                   std::vector<int64_t> prompt,
                   SequenceOptions options)
    : prompt_((check_sequence(decoder, prompt, options), std::move(prompt))),
      options_(std::move(options)),
      sampler_(options_.sampler),
      state_(decoder, pool),
      prompt_scores_(std::make_shared<std::vector<ScoredToken>>()) {
  sampler_.read_prompt(prompt_);
  if (options_.max_tokens == 0) finished_ = FinishReason::kLength;
}

Sequence::Sequence(const Sequence& other, models::SequenceState state)
    : prompt_(other.prompt_),
      options_(other.options_),
      sampler_(other.sampler_),
      state_(std::move(state)),
      prompt_scores_(other.prompt_scores_),
      finished_(other.finished_) {}

Sequence Sequence::fork(uint64_t seed) const {
  TORCH_INTERNAL_ASSERT(written_.empty(), "the text has begun");
  Sequence copy(*this, state_.fork());
  copy.options_.sampler.seed = seed;
  copy.sampler_.reseed(seed);
  return copy;
}

// A fork in the middle of the prompt reads the rest for itself.
void Sequence::add_prompt_scores(const std::vector<ScoredToken>& scores) {
  if (prompt_scores_.use_count() > 1) {
    prompt_scores_ = std::make_shared<std::vector<ScoredToken>>(*prompt_scores_);
  }
  prompt_scores_->insert(prompt_scores_->end(), scores.begin(), scores.end());
}

void Sequence::adopt(models::SequenceState state) {
  TORCH_INTERNAL_ASSERT(state_.length() == 0 && state.length() < num_tokens());
  state_ = std::move(state);
}

int64_t Sequence::token_at(int64_t position) const {
  const auto num_prompt = static_cast<int64_t>(prompt_.size());
  return position < num_prompt ? prompt_[position] : written_[position - num_prompt].token;
}

std::vector<int64_t> Sequence::guess() const {
  const int64_t end = num_tokens();
  const int64_t left = options_.max_tokens - static_cast<int64_t>(written_.size()) - 1;
  const int64_t wanted = std::min(options_.lookup_tokens, left);
  if (wanted <= 0) return {};
  for (int64_t length = std::min(kLookupLength, end - 1); length > 0; --length) {
    for (int64_t begin = end - length - 1; begin >= 0; --begin) {
      int64_t same = 0;
      while (same < length && token_at(begin + same) == token_at(end - length + same)) ++same;
      if (same < length) continue;
      std::vector<int64_t> guessed;
      for (int64_t i = begin + length; i < end && std::ssize(guessed) < wanted; ++i) {
        guessed.push_back(token_at(i));
      }
      return guessed;
    }
  }
  return {};
}

int64_t Sequence::take(const at::Tensor& logits, std::span<const int64_t> guessed) {
  int64_t taken = 0;
  const auto num_guessed = static_cast<int64_t>(guessed.size());
  num_guessed_ += num_guessed;
  for (int64_t row = 0; row <= num_guessed; ++row) {
    const int64_t token = sampler_.next(logits.select(0, row));
    ScoredToken scored =
        score_tokens(logits.narrow(0, row, 1), std::span(&token, 1), options_.scores)[0];
    const bool was_guessed = row < num_guessed && token == guessed[row];
    if (was_guessed) ++num_accepted_;
    const auto among = [token](const std::vector<int64_t>& ids) {
      return std::ranges::find(ids, token) != ids.end();
    };
    const bool stops_late = among(options_.stop_after_text);
    if (among(options_.stop) || (stops_late && has_text_)) {
      end_ = std::move(scored);
      finished_ = FinishReason::kStop;
      break;
    }
    has_text_ = has_text_ || !stops_late;
    written_.push_back(std::move(scored));
    ++taken;
    if (std::ssize(written_) >= options_.max_tokens) {
      finished_ = FinishReason::kLength;
      break;
    }
    if (!was_guessed) break;
  }
  return taken;
}

}  // namespace reynard::generation
