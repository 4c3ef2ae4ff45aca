#include "reynard/serving/answer.h"

#include "reynard/protocol/api_error.h"
#include "reynard/serving/cache_json.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <utility>
#include <variant>

namespace reynard::serving {

namespace {

using protocol::ApiError;

constexpr int64_t kCompletionTokens = 16;  // what the API writes unless told otherwise
constexpr int64_t kChatTokens = 1024;
// Log-probabilities of prompts in one answer: as JSON each takes about a hundred bytes of memory.
constexpr int64_t kMaxPromptScores = int64_t{1} << 21;

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Fewer than the default where the prompt leaves less room.
int64_t max_tokens(const std::optional<int64_t>& asked,
                   int64_t fallback,
                   int64_t longest_prompt,
                   const ServedModel& model) {
  const int64_t room = model.max_length - longest_prompt;
  const int64_t tokens = asked.value_or(std::clamp<int64_t>(room, 1, fallback));
  if (tokens <= room) return tokens;
  ApiError error(400,
                 fmt::format("the prompt has {} and max_tokens is {}; this server takes {} "
                             "together",
                             counted(longest_prompt, "token"),
                             tokens,
                             model.max_length),
                 asked && *asked > model.max_length ? "max_tokens" : "prompt");
  error.code = "context_length_exceeded";
  throw error;
}

generation::SequenceOptions sequence_options(const protocol::Sampling& sampling,
                                             const ServedModel& model) {
  generation::SequenceOptions options;
  generation::SamplerOptions& sampler = options.sampler;
  sampler.temperature = sampling.temperature;
  sampler.top_p = sampling.top_p < 1 ? sampling.top_p : 0;
  if (sampling.top_k > 0) sampler.top_k = sampling.top_k;
  // The API's 0 means the most probable token alone, ours means all.
  if (sampling.top_p == 0) sampler.top_k = 1;
  sampler.min_p = sampling.min_p;
  sampler.presence_penalty = sampling.presence_penalty;
  sampler.frequency_penalty = sampling.frequency_penalty;
  sampler.repetition_penalty = sampling.repetition_penalty;
  if (sampling.seed) sampler.seed = *sampling.seed;
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token >= model.vocab_size) {
      throw ApiError(
          400,
          fmt::format("logit_bias has token {}; expected 0 to {}", token, model.vocab_size - 1),
          "logit_bias");
    }
    sampler.logit_bias.push_back({token, bias});
  }
  if (!sampling.ignore_eos) options.stop = model.stop;
  return options;
}

// Without a seed equal prompts have other texts; with one each prompt has those that it has alone.
std::vector<uint64_t> seeds_of(const protocol::Sampling& sampling, std::size_t num_prompts) {
  std::vector<uint64_t> seeds(sampling.seed ? 0 : num_prompts);
  std::ranges::generate(seeds, random_seed);
  return seeds;
}

void check_ids(const std::vector<int64_t>& ids, const ServedModel& model) {
  for (const int64_t id : ids) {
    if (id < model.vocab_size) continue;
    throw ApiError(400,
                   fmt::format("prompt has token {}; expected 0 to {}", id, model.vocab_size - 1),
                   "prompt");
  }
  if (ids.empty()) {
    throw ApiError(400,
                   "the prompt is empty, and nothing begins it: this model has no token that does, "
                   "or echo or a list of tokens leaves it out",
                   "prompt");
  }
}

int64_t longest(const std::vector<std::vector<int64_t>>& prompts) {
  std::size_t most = 0;
  for (const auto& prompt : prompts) most = std::max(most, prompt.size());
  return static_cast<int64_t>(most);
}

// The text that ids stand for; those beyond the tokenizer's (a padded vocabulary) have none.
std::string decode(const ServedModel& model, std::span<const int64_t> ids) {
  std::vector<int64_t> known;
  for (const int64_t id : ids) {
    if (id < model.tokenizer->vocab_size()) known.push_back(id);
  }
  return model.tokenizer->decode(known, {.keep_special = true, .raw_bytes = true});
}

// Each text shown of a prompt repeats all its log-probabilities.
void check_prompt_scores(const Ask& ask) {
  if (!ask.job.options.prompt_scores.logprobs) return;
  int64_t tokens = 0;
  for (const auto& prompt : ask.job.prompts) tokens += std::ssize(prompt);
  const int64_t in_texts = tokens * ask.texts_shown;
  const int64_t per_token = 1 + ask.job.options.prompt_scores.num_top;
  if (in_texts * per_token <= kMaxPromptScores) return;
  const char* field = tokens > kMaxPromptScores     ? "prompt"
                      : in_texts > kMaxPromptScores ? "n"
                                                    : "logprobs";
  throw ApiError(400,
                 fmt::format("{}: echo gives log-probabilities of {} prompt tokens, {} for each in "
                             "{} texts: {}; expected at most {}",
                             field,
                             tokens,
                             per_token,
                             ask.texts_shown,
                             in_texts * per_token,
                             kMaxPromptScores),
                 field);
}

generation::ChatPrompt chat_prompt_of(const protocol::ChatRequest& request,
                                      const ServedModel& model) {
  std::vector<generation::ChatMessage> messages;
  for (const protocol::Message& message : request.messages) {
    messages.push_back({message.role, message.content});
  }
  try {
    return generation::chat_prompt(*model.chat, *model.tokenizer, messages);
  } catch (const Error& error) {  // their order, most likely
    throw ApiError(400, tokenizer::displayable(error.what()), "messages");
  }
}

}  // namespace

void check_model(const std::string& name, const ServedModel& model) {
  if (name.empty() || name == model.name) return;
  ApiError error(
      404,
      fmt::format("there is no model {:?}; this server has {:?}", name.substr(0, 100), model.name),
      "model");
  error.code = "model_not_found";
  throw error;
}

std::vector<int64_t> encode(const ServedModel& model, std::string_view text, bool with_template) {
  const std::vector<int32_t> ids =
      model.tokenizer->encode(text, {.add_template = with_template && model.uses_template});
  std::vector<int64_t> tokens;
  if (with_template && model.bos) tokens.push_back(*model.bos);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  return tokens;
}

Ask ask_completion(const protocol::CompletionRequest& request, const ServedModel& model) {
  check_model(request.model, model);
  Ask ask;
  ask.texts_shown = request.sampling.n;
  ask.stream = request.sampling.stream;
  ask.include_usage = request.sampling.include_usage;
  ask.logprobs = request.logprobs.has_value();
  for (const protocol::Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    // Clients that have a prompt scored count its tokens themselves.
    ask.job.prompts.push_back(text != nullptr ? encode(model, *text, !request.echo)
                                              : std::get<std::vector<int64_t>>(prompt));
    check_ids(ask.job.prompts.back(), model);
    if (!request.echo) continue;
    std::string echo = text != nullptr ? *text : decode(model, ask.job.prompts.back());
    const std::size_t whole = tokenizer::whole_characters(echo);
    ask.job.begun.push_back(echo.substr(whole));
    ask.echoes.push_back(tokenizer::displayable(echo.substr(0, whole)));
  }
  ask.job.goes_on = true;
  ask.job.texts_per_prompt = request.best_of;
  ask.job.seeds = seeds_of(request.sampling, ask.job.prompts.size());
  ask.job.options = sequence_options(request.sampling, model);
  ask.job.options.max_tokens =
      max_tokens(request.sampling.max_tokens, kCompletionTokens, longest(ask.job.prompts), model);
  ask.job.options.scores = {.logprobs = ask.logprobs || request.best_of > request.sampling.n,
                            .num_top = request.logprobs.value_or(0)};
  ask.job.options.prompt_scores = {.logprobs = ask.logprobs && request.echo,
                                   .num_top = request.logprobs.value_or(0)};
  check_prompt_scores(ask);
  ask.job.stop = request.sampling.stop;
  ask.job.cache_use = request.sampling.cache_stats;
  return ask;
}

Ask ask_chat(const protocol::ChatRequest& request, const ServedModel& model) {
  check_model(request.model, model);
  if (!model.chat) throw ApiError(400, model.no_chat, "messages");
  Ask ask;
  ask.is_chat = true;
  ask.texts_shown = request.sampling.n;
  ask.stream = request.sampling.stream;
  ask.include_usage = request.sampling.include_usage;
  ask.logprobs = request.logprobs;
  generation::ChatPrompt prompt = chat_prompt_of(request, model);
  ask.job.prompts.push_back(std::move(prompt.tokens));
  check_ids(ask.job.prompts.back(), model);
  ask.job.texts_per_prompt = request.sampling.n;
  ask.job.seeds = seeds_of(request.sampling, ask.job.prompts.size());
  ask.job.options = sequence_options(request.sampling, model);
  ask.job.options.max_tokens =
      max_tokens(request.sampling.max_tokens, kChatTokens, longest(ask.job.prompts), model);
  ask.job.options.scores = {.logprobs = request.logprobs, .num_top = request.top_logprobs};
  ask.job.stop = request.sampling.stop;
  if (!request.sampling.ignore_eos) {
    ask.job.options.stop.insert(ask.job.options.stop.end(), prompt.stop.begin(), prompt.stop.end());
    ask.job.stop.insert(ask.job.stop.end(), prompt.stop_texts.begin(), prompt.stop_texts.end());
  }
  ask.job.cache_use = request.sampling.cache_stats;
  return ask;
}

Answer::Answer(const Ask& ask, const ServedModel& model) : ask_(ask), model_(model) {
  texts_.resize(ask.job.prompts.size() * static_cast<std::size_t>(ask.job.texts_per_prompt));
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    texts_[i].choice.index = static_cast<int64_t>(i);
    if (ask.logprobs) texts_[i].choice.logprobs.emplace();
  }
  for (const auto& prompt : ask.job.prompts) usage_.prompt_tokens += std::ssize(prompt);
  prompt_logprobs_.resize(ask.job.prompts.size());
}

protocol::TokenLogprob Answer::token_logprob(const generation::ScoredToken& token) const {
  protocol::TokenLogprob out{.text = generation::text_of_token(*model_.tokenizer, token.token),
                             .logprob = token.logprob,
                             .top = {}};
  for (const generation::TokenScore& other : token.top) {
    out.top.emplace_back(generation::text_of_token(*model_.tokenizer, other.token), other.logprob);
  }
  return out;
}

// Nobody predicts the first token of a prompt.
std::vector<protocol::TokenLogprob> Answer::prompt_logprobs(const Piece& piece,
                                                            int64_t prompt) const {
  const std::vector<int64_t>& ids = ask_.job.prompts[prompt];
  std::vector<protocol::TokenLogprob> out = {
      {.text = decode(model_, std::span(ids.data(), 1)), .logprob = {}, .top = {}}};
  for (const generation::ScoredToken& token : *piece.prompt_scores) {
    out.push_back(token_logprob(token));
  }
  generation::TokenBytes bytes(*model_.tokenizer, /*keep_special=*/true);
  std::vector<std::string> texts;
  for (const int64_t id : ids) texts.push_back(bytes.add(id));
  const std::vector<int64_t> offsets = offsets_in(ask_.echoes[prompt], texts);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].text_offset = offsets[i];
  return out;
}

// The echo and what it is to the tokens behind it.
void Answer::begin(Text& text, const Piece& piece, protocol::Choice& delta) {
  const int64_t prompt = piece.index / ask_.job.texts_per_prompt;
  usage_.cached_tokens += piece.reused_tokens;
  std::string begun;
  if (!ask_.echoes.empty()) {
    delta.text = ask_.echoes[prompt];
    if (auto& shared = prompt_logprobs_[prompt]; ask_.logprobs) {
      if (!shared) {
        shared = std::make_shared<const std::vector<protocol::TokenLogprob>>(
            prompt_logprobs(piece, prompt));
      }
      delta.prompt_logprobs = shared;
    }
    begun = ask_.job.begun[prompt];
  }
  text.offsets = TextOffsets(tokenizer::num_characters(delta.text), std::move(begun));
  std::span<const int64_t> before;
  if (ask_.job.goes_on) before = ask_.job.prompts[prompt];
  text.bytes.emplace(*model_.tokenizer, /*keep_special=*/false, before);
}

protocol::Choice Answer::add(const Piece& piece) {
  Text& text = texts_[piece.index];
  protocol::Choice delta{.index = piece.index, .text = {}};
  if (ask_.logprobs) delta.logprobs.emplace();
  if (!text.bytes) begin(text, piece, delta);
  delta.text += piece.text;
  const auto add_token = [&](const generation::ScoredToken& token) {
    ++usage_.completion_tokens;
    ++text.num_tokens;
    if (!std::isnan(token.logprob)) text.logprob += token.logprob;
    if (!ask_.logprobs) return;
    delta.logprobs->push_back(token_logprob(token));
    delta.logprobs->back().text_offset = text.offsets.add(text.bytes->add(token.token));
  };
  for (const generation::ScoredToken& token : piece.tokens) add_token(token);
  if (piece.end) add_token(*piece.end);
  if (piece.finished != generation::FinishReason::kNone) {
    delta.finish_reason = piece.finished == generation::FinishReason::kStop ? "stop" : "length";
    if (piece.cache) delta.cache = cache_json(*piece.cache);
  }
  if (ask_.stream) return delta;
  protocol::Choice& whole = text.choice;
  whole.text += delta.text;
  if (ask_.logprobs) {
    if (delta.prompt_logprobs) whole.prompt_logprobs = delta.prompt_logprobs;
    whole.logprobs->insert(whole.logprobs->end(), delta.logprobs->begin(), delta.logprobs->end());
  }
  whole.finish_reason = delta.finish_reason;
  whole.cache = delta.cache;
  return delta;
}

std::vector<protocol::Choice> Answer::choices() const {
  std::vector<protocol::Choice> shown;
  const auto written = ask_.job.texts_per_prompt;
  for (auto first = texts_.begin(); first != texts_.end(); first += written) {
    std::vector<const Text*> ranked;
    for (auto text = first; text != first + written; ++text) ranked.push_back(&*text);
    if (ask_.texts_shown < written) {
      const auto mean = [](const Text* text) {
        return text->logprob / static_cast<double>(std::max<int64_t>(1, text->num_tokens));
      };
      std::ranges::stable_sort(ranked, std::greater(), mean);
    }
    for (int64_t i = 0; i < ask_.texts_shown; ++i) {
      shown.push_back(ranked[i]->choice);
      shown.back().index = std::ssize(shown) - 1;
    }
  }
  return shown;
}

}  // namespace reynard::serving
