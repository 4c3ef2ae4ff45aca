#include "reynard/protocol/responses.h"

#include "reynard/config/json_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

namespace reynard::protocol {

namespace {

using nlohmann::ordered_json;

// JSON has no infinity; this is what the original API says for "never".
constexpr float kNever = -9999;

ordered_json number(float logprob) {
  return std::isfinite(logprob) ? logprob : kNever;
}

// Keys must be what a reader sees: two ids whose bytes are shown alike are one.
std::string key_of(const std::string& bytes) {
  return ordered_json::parse(config::json_text(ordered_json(bytes))).get<std::string>();
}

ordered_json completion_logprobs(const Choice& choice) {
  if (!choice.logprobs) return nullptr;
  ordered_json json = {{"tokens", ordered_json::array()},
                       {"token_logprobs", ordered_json::array()},
                       {"top_logprobs", ordered_json::array()},
                       {"text_offset", ordered_json::array()}};
  const auto add = [&](const TokenLogprob& token) {
    json["tokens"].push_back(token.text);
    json["token_logprobs"].push_back(token.logprob ? number(*token.logprob) : ordered_json());
    json["text_offset"].push_back(token.text_offset);
    ordered_json top;
    if (token.logprob) {
      // Best first: of equal texts the larger stays, but the token's own is its own.
      for (const auto& [text, logprob] : token.top) top.emplace(key_of(text), number(logprob));
      top[key_of(token.text)] = number(*token.logprob);
    }
    json["top_logprobs"].push_back(std::move(top));
  };
  if (choice.prompt_logprobs) std::ranges::for_each(*choice.prompt_logprobs, add);
  std::ranges::for_each(*choice.logprobs, add);
  return json;
}

ordered_json chat_token(const std::string& text, float logprob) {
  ordered_json bytes = ordered_json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", number(logprob)}, {"bytes", bytes}};
}

ordered_json chat_logprobs(const Choice& choice) {
  if (!choice.logprobs) return nullptr;
  ordered_json content = ordered_json::array();
  for (const TokenLogprob& token : *choice.logprobs) {
    ordered_json entry = chat_token(token.text, token.logprob.value_or(kNever));
    entry["top_logprobs"] = ordered_json::array();
    for (const auto& [text, logprob] : token.top) {
      entry["top_logprobs"].push_back(chat_token(text, logprob));
    }
    content.push_back(entry);
  }
  return {{"content", content}};
}

ordered_json finish_reason(const Choice& choice) {
  return choice.finish_reason.empty() ? ordered_json() : ordered_json(choice.finish_reason);
}

ordered_json envelope_json(const Envelope& envelope, const char* object) {
  return {{"id", envelope.id},
          {"object", object},
          {"created", envelope.created},
          {"model", envelope.model}};
}

void add_usage(ordered_json& json, const std::optional<Usage>& usage) {
  if (!usage) return;
  json["usage"] = {{"prompt_tokens", usage->prompt_tokens},
                   {"completion_tokens", usage->completion_tokens},
                   {"total_tokens", usage->prompt_tokens + usage->completion_tokens},
                   {"prompt_tokens_details", {{"cached_tokens", usage->cached_tokens}}}};
}

ordered_json with_cache(ordered_json choice, const Choice& from) {
  if (!from.cache.is_null()) choice["cache"] = from.cache;
  return choice;
}

}  // namespace

ordered_json completion_json(const Envelope& envelope,
                             std::span<const Choice> choices,
                             const std::optional<Usage>& usage) {
  ordered_json json = envelope_json(envelope, "text_completion");
  json["choices"] = ordered_json::array();
  for (const Choice& choice : choices) {
    json["choices"].push_back(with_cache({{"index", choice.index},
                                          {"text", choice.text},
                                          {"logprobs", completion_logprobs(choice)},
                                          {"finish_reason", finish_reason(choice)}},
                                         choice));
  }
  add_usage(json, usage);
  return json;
}

ordered_json chat_json(const Envelope& envelope,
                       std::span<const Choice> choices,
                       const std::optional<Usage>& usage) {
  ordered_json json = envelope_json(envelope, "chat.completion");
  json["choices"] = ordered_json::array();
  for (const Choice& choice : choices) {
    json["choices"].push_back(
        with_cache({{"index", choice.index},
                    {"message", {{"role", "assistant"}, {"content", choice.text}}},
                    {"logprobs", chat_logprobs(choice)},
                    {"finish_reason", finish_reason(choice)}},
                   choice));
  }
  add_usage(json, usage);
  return json;
}

ordered_json chat_chunk_json(const Envelope& envelope,
                             std::span<const Choice> choices,
                             const std::optional<Usage>& usage,
                             bool with_role) {
  ordered_json json = envelope_json(envelope, "chat.completion.chunk");
  json["choices"] = ordered_json::array();
  for (const Choice& choice : choices) {
    ordered_json delta = ordered_json::object();
    if (with_role) delta["role"] = "assistant";
    if (with_role || !choice.text.empty()) delta["content"] = choice.text;
    json["choices"].push_back(with_cache({{"index", choice.index},
                                          {"delta", delta},
                                          {"logprobs", chat_logprobs(choice)},
                                          {"finish_reason", finish_reason(choice)}},
                                         choice));
  }
  add_usage(json, usage);
  return json;
}

// All that JSON leaves as it is and some readers of streams (Python's splitlines) end a line at.
std::string server_sent_event(const ordered_json& json) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kLineEnds = {
      {{"\u0085", "\\u0085"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}}};
  std::string text = config::json_text(json);
  for (const auto& [end, escape] : kLineEnds) {
    std::string escaped;
    std::size_t at = 0;
    for (std::size_t found = 0; (found = text.find(end, at)) != std::string::npos;) {
      escaped.append(text, at, found - at).append(escape);
      at = found + end.size();
    }
    text = escaped.append(text, at);
  }
  return "data: " + text + "\n\n";
}

ordered_json models_json(const std::string& model, int64_t created, int64_t max_length) {
  return {{"object", "list"},
          {"data",
           ordered_json::array({{{"id", model},
                                 {"object", "model"},
                                 {"created", created},
                                 {"owned_by", "reynard"},
                                 {"max_model_len", max_length}}})}};
}

}  // namespace reynard::protocol
