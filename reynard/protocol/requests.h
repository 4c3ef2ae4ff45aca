#pragma once
// The requests of the OpenAI API that the server takes, parsed and checked as far as this needs
// neither model nor tokenizer. Everything wrong is an ApiError 400 naming the field.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::protocol {

// What both kinds of requests say about how to write.
struct Sampling {
  std::optional<int64_t> max_tokens;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;
  double min_p = 0;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  double repetition_penalty = 1;
  std::vector<std::pair<int64_t, double>> logit_bias;
  std::optional<uint64_t> seed;  // nothing: another one each time
  std::vector<std::string> stop;
  int64_t n = 1;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;  // stream_options.include_usage
  bool cache_stats = false;    // own field: pages kept per head with the end of each text
};

using Prompt = std::variant<std::string, std::vector<int64_t>>;

struct CompletionRequest {
  std::string model;
  std::vector<Prompt> prompts;
  Sampling sampling;
  int64_t best_of = 1;
  bool echo = false;
  std::optional<int64_t> logprobs;  // most probable tokens listed per token
};
// How many texts are written for a request.
struct TextLimits {
  int64_t per_prompt = 64;    // n, best_of
  int64_t per_request = 256;  // for all its prompts
};
CompletionRequest parse_completion_request(std::string_view body, const TextLimits& limits = {});

struct Message {
  std::string role;  // system, user, assistant
  std::string content;
};

struct ChatRequest {
  std::string model;
  std::vector<Message> messages;
  Sampling sampling;
  bool logprobs = false;
  int64_t top_logprobs = 0;
};
ChatRequest parse_chat_request(std::string_view body, const TextLimits& limits = {});

struct TokenizeRequest {
  std::string text;  // "prompt"
  bool add_special_tokens = true;
};
TokenizeRequest parse_tokenize_request(std::string_view body);

// The ids under "tokens".
std::vector<int64_t> parse_detokenize_request(std::string_view body);

}  // namespace reynard::protocol
