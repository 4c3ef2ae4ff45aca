#include "reynard/generation/generator.h"

#include "reynard/attention/cache.h"
#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/models/stepper.h"
#include "reynard/tensor/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

namespace reynard::generation {

namespace {

// Logits of this many prompt tokens exist at once.
constexpr int64_t kScoredRows = 64;

// Chunks of a prompt: the first one, the largest one, and what part of the tokens before it a chunk
// between them has. All chunks together then copy few times the keys and values of the prompt.
constexpr int64_t kFirstChunk = 512, kLargestChunk = 4096, kChunkShare = 8;

int64_t grown_chunk(int64_t tokens_read) {
  return std::clamp(tokens_read / kChunkShare, kFirstChunk, kLargestChunk);
}

at::Tensor ids(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

}  // namespace

// Keeps what fails for some texts until the others of the pass are done.
class Generator::Failures {
 public:
  void attempt(const Sequence& sequence, const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      failed_.push_back({&sequence, error.what()});
    }
  }
  void throw_if_any() const {
    if (!failed_.empty()) throw FailedTexts(failed_);
  }

 private:
  std::vector<FailedTexts::Text> failed_;
};

Generator::Generator(models::Decoder& decoder, const GeneratorOptions& options)
    : decoder_(decoder),
      options_(options),
      pool_(models::make_page_pool(decoder, options.max_pages)) {
  const int64_t chunk = options.chunk_tokens.value_or(kFirstChunk);
  tensor::check_value(chunk >= 1, "generate", "chunk_tokens", chunk, "at least 1");
  // On a CPU nothing is gained by recording, and its decode reads caches as they lie.
  if (!decoder.device().is_cpu()) stepper_ = std::make_unique<models::Stepper>(decoder, pool_);
}

Generator::~Generator() = default;

Sequence Generator::start(std::vector<int64_t> prompt, SequenceOptions options) const {
  Sequence sequence(decoder_, pool_, std::move(prompt), std::move(options));
  if (options_.memories) {
    sequence.adopt(models::SequenceState::restore(pool_, *options_.memories));
  }
  return sequence;
}

void Generator::prefill(Sequence& sequence, int64_t max_tokens) {
  if (sequence.is_prefilled()) return;
  int64_t grown = grown_chunk(sequence.state_.length());
  // A context is remembered as a whole.
  const int64_t window = decoder_.config().memory.window;
  if (rememberable(sequence) > 0 && window <= kLargestChunk) grown = std::max(grown, window);
  const int64_t own = options_.chunk_tokens.value_or(grown);
  const PromptChunk chunk{&sequence, max_tokens > 0 ? max_tokens : own};
  prefill({&chunk, 1});
}

int64_t Generator::least_chunk(const Sequence& sequence) const {
  const int64_t rest = rememberable(sequence), window = decoder_.config().memory.window;
  const bool is_less_work = rest > 0 && window <= kLargestChunk && decoder_.remembers_alone();
  return is_less_work ? std::min(rest, window) : 1;
}

// Where the tokens of the prompt end that only the memories need: those before the local context of
// the last token, where nobody asks for log-probabilities.
int64_t Generator::remembered_end(const Sequence& sequence) const {
  const models::DecoderConfig& config = decoder_.config();
  if (!config.has_memory() || sequence.options_.prompt_scores.logprobs) return 0;
  const int64_t length = std::ssize(sequence.prompt_), window = config.memory.window;
  const int64_t last = config.last_context_begin(length);
  return last > 0 ? last : (length - 1) / window * window;
}

// The next tokens of the prompt that may be remembered: none where no context begins.
int64_t Generator::rememberable(const Sequence& sequence) const {
  const int64_t begin = sequence.state_.length();
  if (begin % decoder_.config().memory.window != 0) return 0;
  return std::max<int64_t>(remembered_end(sequence) - begin, 0);
}

// Whether the chunk was read by Decoder::remember, whose time grows as the tokens and which
// computes less of them. Only what comes last may be less than whole contexts.
bool Generator::remember(const PromptChunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  const int64_t window = decoder_.config().memory.window, rest = rememberable(sequence);
  const int64_t count = chunk.tokens < rest ? chunk.tokens / window * window : rest;
  if (count == 0) return false;
  const auto first = sequence.prompt_.begin() + sequence.state_.length();
  decoder_.remember(ids({first, first + count}), sequence.state_);
  num_remembered_ += count;
  return true;
}

// Tokens of the prompt that one pass can take.
int64_t Generator::begin_chunk(const PromptChunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  TORCH_INTERNAL_ASSERT(!sequence.is_prefilled() && chunk.tokens >= 1);
  const int64_t begin = sequence.state_.length();
  // What comes before the prompt's last context goes to the memory.
  const int64_t last_context = decoder_.config().last_context_begin(std::ssize(sequence.prompt_));
  if (begin == last_context) decoder_.start_window(sequence.state_);
  int64_t count = std::min(chunk.tokens, sequence.num_unread());
  if (begin < last_context) count = std::min(count, last_context - begin);
  // As a reused prefix may end within a context: those behind it can be remembered.
  const int64_t window = decoder_.config().memory.window, left = window - begin % window;
  return begin + left < remembered_end(sequence) ? std::min(count, left) : count;
}

void Generator::prefill(std::span<const PromptChunk> chunks) {
  Failures failures;
  std::vector<PromptChunk> read;
  for (const PromptChunk& chunk : chunks) {
    failures.attempt(*chunk.sequence, [&] {
      if (!remember(chunk)) read.push_back(chunk);
    });
  }
  if (!read.empty()) this->read(read, failures);
  failures.throw_if_any();
}

void Generator::read(std::span<const PromptChunk> chunks, Failures& failures) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> tokens, offsets;
  std::vector<models::SequenceState*> states;
  for (const PromptChunk& chunk : chunks) {
    const int64_t count = begin_chunk(chunk);
    const auto first = chunk.sequence->prompt_.begin() + chunk.sequence->state_.length();
    offsets.push_back(std::ssize(tokens));
    tokens.insert(tokens.end(), first, first + count);
    states.push_back(&chunk.sequence->state_);
  }
  evict(states);
  const at::Tensor hidden = decoder_.hidden(ids(tokens), ids(offsets), states);
  offsets.push_back(std::ssize(tokens));
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    Sequence& sequence = *chunks[c].sequence;
    const int64_t count = offsets[c + 1] - offsets[c];
    failures.attempt(sequence, [&] {
      sequence.state_.check_memories();
      if (!sequence.options_.prompt_scores.logprobs) return;
      score(sequence, hidden.narrow(0, offsets[c], count), sequence.state_.length() - count);
    });
  }
}

// hidden (N, C): of the prompt's tokens first, ..., first + N - 1.
void Generator::score(Sequence& sequence, const at::Tensor& hidden, int64_t first) {
  for (int64_t row = 0; row < hidden.size(0); row += kScoredRows) {
    const int64_t rows = std::min(kScoredRows, hidden.size(0) - row);
    const at::Tensor logits =
        models::logits(decoder_, hidden, at::arange(row, row + rows, at::kLong)).cpu();
    const std::span<const int64_t> targets(&sequence.prompt_[first + row + 1],
                                           static_cast<std::size_t>(rows));
    sequence.add_prompt_scores(score_tokens(logits, targets, sequence.options_.prompt_scores));
  }
}

void Generator::free_pages(Sequence& sequence) {
  models::SequenceState* const states[] = {&sequence.state_};
  evict(states);
}

void Generator::step(std::span<Sequence* const> sequences) {
  if (sequences.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<std::vector<int64_t>> guesses;
  std::vector<int64_t> tokens, offsets;
  std::vector<models::SequenceState*> states;
  for (Sequence* sequence : sequences) {
    TORCH_INTERNAL_ASSERT(sequence->is_prefilled() && sequence->finished() == FinishReason::kNone);
    offsets.push_back(static_cast<int64_t>(tokens.size()));
    tokens.push_back(sequence->token_at(sequence->num_tokens() - 1));
    guesses.push_back(sequence->guess());
    // Guesses must be in one local context with the newest token, or they could not be taken back.
    const models::DecoderConfig& config = decoder_.config();
    if (config.has_memory()) {
      const int64_t left = config.memory.window - sequence->state_.window_length() - 1;
      guesses.back().resize(
          std::min<int64_t>(std::ssize(guesses.back()), std::max<int64_t>(left, 0)));
    }
    tokens.insert(tokens.end(), guesses.back().begin(), guesses.back().end());
    states.push_back(&sequence->state_);
  }
  const bool is_step =
      stepper_ != nullptr && tokens.size() == states.size() && decoder_.takes_steps();
  const at::Tensor logits =
      is_step ? stepper_->logits(tokens, states).cpu()
              : models::logits(decoder_, decoder_.hidden(ids(tokens), ids(offsets), states)).cpu();
  Failures failures;
  std::vector<models::SequenceState*> due;  // for eviction, whose horizon is a page end
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const at::Tensor rows = logits.narrow(0, offsets[s], std::ssize(guesses[s]) + 1);
    failures.attempt(*sequences[s], [&] {
      states[s]->check_memories();
      const bool is_first = sequences[s]->written().empty();  // the prompt's last chunk is whole
      const int64_t taken = take(*sequences[s], rows, guesses[s]);
      const int64_t pages = states[s]->length() / attention::kPageTokens;
      const int64_t before = (states[s]->length() - taken) / attention::kPageTokens;
      if (is_first || pages > before) due.push_back(states[s]);
    });
  }
  evict(due);
  failures.throw_if_any();
}

// logits (R, V), R - 1 guessed. Returns how many tokens the state has taken.
int64_t Generator::take(Sequence& sequence,
                        const at::Tensor& logits,
                        std::span<const int64_t> guessed) {
  const int64_t taken = std::max<int64_t>(1, sequence.take(logits, guessed));
  // The state holds every token but the newest; wrong guesses leave it.
  const int64_t length = sequence.num_tokens() - 1;
  if (sequence.state_.length() > length) sequence.state_.truncate(length);
  return taken;
}

void Generator::evict(std::span<models::SequenceState* const> states) {
  const double log_tolerance =
      options_.evict ? decoder_.config().attention.log_pruning_tolerance : 0;
  num_evicted_ += decoder_.evict(states, log_tolerance);
}

std::vector<std::vector<int64_t>> generate(models::Decoder& decoder,
                                           std::span<const Prompt> prompts,
                                           std::shared_ptr<const models::StateSnapshot> memories) {
  Generator generator(decoder, {.memories = std::move(memories)});
  std::vector<Sequence> sequences;
  for (const auto& [tokens, options] : prompts) {
    sequences.push_back(generator.start(tokens, options));
  }
  for (Sequence& sequence : sequences) {
    while (!sequence.is_prefilled()) generator.prefill(sequence);
  }
  for (;;) {
    std::vector<Sequence*> unfinished;
    for (Sequence& sequence : sequences) {
      if (sequence.finished() == FinishReason::kNone) unfinished.push_back(&sequence);
    }
    if (unfinished.empty()) break;
    generator.step(unfinished);
  }
  std::vector<std::vector<int64_t>> texts;
  for (const Sequence& sequence : sequences) {
    std::vector<int64_t>& text = texts.emplace_back();
    for (const ScoredToken& written : sequence.written()) text.push_back(written.token);
  }
  return texts;
}

}  // namespace reynard::generation
