#pragma once
// The answers of the OpenAI API as JSON: whole ones and the chunks of a stream. Text may be any
// bytes; what is not UTF-8 is shown as U+FFFD.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::protocol {

struct Envelope {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
};

struct TokenLogprob {
  std::string text;                                // bytes
  std::optional<float> logprob;                    // nothing: the first token of an echoed prompt
  std::vector<std::pair<std::string, float>> top;  // the most probable tokens, best first
  int64_t text_offset = 0;                         // characters of the choice's text before it
};

struct Choice {
  int64_t index = 0;
  std::string text;
  std::optional<std::vector<TokenLogprob>> logprobs = {};
  // Of an echoed prompt, which stand before the choice's own: its choices share them. Null: none.
  std::shared_ptr<const std::vector<TokenLogprob>> prompt_logprobs = {};
  std::string finish_reason = {};     // "stop", "length"; empty: not finished
  nlohmann::ordered_json cache = {};  // own field; null: not asked for
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts: found in the cache
};

// object "text_completion", also for chunks of a stream; usage is left out where there is none.
nlohmann::ordered_json completion_json(const Envelope& envelope,
                                       std::span<const Choice> choices,
                                       const std::optional<Usage>& usage);
// object "chat.completion".
nlohmann::ordered_json chat_json(const Envelope& envelope,
                                 std::span<const Choice> choices,
                                 const std::optional<Usage>& usage);
// object "chat.completion.chunk"; the first chunk of a choice carries its role.
nlohmann::ordered_json chat_chunk_json(const Envelope& envelope,
                                       std::span<const Choice> choices,
                                       const std::optional<Usage>& usage,
                                       bool with_role);

// The bytes of one server-sent event.
std::string server_sent_event(const nlohmann::ordered_json& json);
inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

// GET /v1/models.
nlohmann::ordered_json models_json(const std::string& model, int64_t created, int64_t max_length);

}  // namespace reynard::protocol
