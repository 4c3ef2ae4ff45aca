#include "reynard/protocol/requests.h"

#include "reynard/protocol/api_error.h"
#include "reynard/protocol/request_fields.h"
#include "reynard/tensor/counted.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <system_error>

namespace reynard::protocol {

namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr std::size_t kMaxStops = 64;  // clients send more than the four of the original
constexpr std::size_t kMaxStopBytes = 1024;
constexpr int64_t kMaxTopLogprobs = 100;
constexpr std::size_t kMaxBiases = 4096;
constexpr std::size_t kMaxMessages = 4096;

std::vector<std::pair<int64_t, double>> read_logit_bias(const RequestFields& fields) {
  const nlohmann::json& value = fields.at("logit_bias");
  if (value.is_null()) return {};
  const auto reject = [&] {
    fields.reject("logit_bias",
                  fmt::format("an object of at most {} token ids, each with a number from -100 to "
                              "100",
                              kMaxBiases));
  };
  if (!value.is_object() || value.size() > kMaxBiases) reject();
  std::vector<std::pair<int64_t, double>> biases;
  for (const auto& [key, bias] : value.items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = error == std::errc() && end == key.data() + key.size() && id >= 0;
    if (!is_id || !bias.is_number()) reject();
    if (!(bias.get<double>() >= -100 && bias.get<double>() <= 100)) reject();
    biases.emplace_back(id, bias.get<double>());
  }
  return biases;
}

Sampling read_sampling(const RequestFields& fields, const TextLimits& limits) {
  constexpr double kAny = 1e6;
  Sampling s;
  s.max_tokens = fields.integer("max_tokens", 0, kMaxTokens);
  s.temperature = fields.number("temperature", 0, 100).value_or(s.temperature);
  s.top_p = fields.number("top_p", 0, 1).value_or(s.top_p);
  // -1 is how other servers say "all".
  s.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, kMaxTokens).value_or(0));
  s.min_p = fields.number("min_p", 0, 1).value_or(s.min_p);
  s.presence_penalty = fields.number("presence_penalty", -kAny, kAny).value_or(0);
  s.frequency_penalty = fields.number("frequency_penalty", -kAny, kAny).value_or(0);
  s.repetition_penalty = fields.number("repetition_penalty", 1e-3, 1e3).value_or(1);
  s.logit_bias = read_logit_bias(fields);
  if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), INT64_MAX)) {
    s.seed = static_cast<uint64_t>(*seed);
  }
  s.stop = fields.texts("stop", kMaxStops);
  for (const std::string& text : s.stop) {
    if (!text.empty() && text.size() <= kMaxStopBytes) continue;
    fields.reject("stop", fmt::format("strings of 1 to {} bytes", kMaxStopBytes));
  }
  s.n = fields.integer("n", 1, limits.per_prompt).value_or(1);
  s.ignore_eos = fields.boolean("ignore_eos", false);
  s.stream = fields.boolean("stream", false);
  s.cache_stats = fields.boolean("cache_stats", false);
  const nlohmann::json& options = fields.at("stream_options");
  if (!options.is_null()) {
    if (!options.is_object()) fields.reject("stream_options", "an object");
    s.include_usage = RequestFields(options, "stream_options.").boolean("include_usage", false);
  }
  return s;
}

bool is_id_list(const nlohmann::json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

std::vector<Prompt> read_prompts(const RequestFields& fields, int64_t most) {
  const nlohmann::json& value = fields.at("prompt");
  const std::string expected =
      fmt::format("a string, a list of token ids, or a list of 1 to {} of these", most);
  if (value.is_string()) return {value.get<std::string>()};
  if (is_id_list(value)) return {token_ids(value, "prompt")};
  if (!value.is_array() || value.empty() || std::ssize(value) > most) {
    fields.reject("prompt", expected);
  }
  std::vector<Prompt> prompts;
  for (const auto& item : value) {
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (is_id_list(item)) {
      prompts.emplace_back(token_ids(item, "prompt"));
    } else {
      fields.reject("prompt", expected);
    }
  }
  return prompts;
}

// A string, or the text parts of a list.
std::string read_content(const nlohmann::json& content, const std::string& field) {
  if (content.is_string()) return content.get<std::string>();
  const auto reject = [&] {
    throw ApiError(400, field + ": expected a string or a list of parts of type text", field);
  };
  if (!content.is_array()) reject();
  std::string text;
  for (const auto& part : content) {
    if (!part.is_object() || part.value("type", nlohmann::json()) != "text" ||
        !part.value("text", nlohmann::json()).is_string()) {
      reject();
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

std::string read_role(const nlohmann::json& message, const std::string& prefix) {
  const RequestFields fields(message, prefix);
  const std::string role = fields.text("role").value_or("");
  if (role == "developer") return "system";  // as newer clients say
  if (role != "system" && role != "user" && role != "assistant") {
    fields.reject("role", "system, developer, user or assistant");
  }
  return role;
}

// What would change the answer's form is refused, not ignored. Tools that are not to be called
// change nothing.
void reject_unsupported(const RequestFields& fields) {
  for (const auto& [tools, choice] :
       {std::pair{"tools", "tool_choice"}, std::pair{"functions", "function_call"}}) {
    const nlohmann::json& chosen = fields.at(choice);
    if (chosen == "none") continue;
    if (!chosen.is_null() && chosen != "auto") {
      fields.reject(choice, "none or auto: tools are not supported");
    }
    const nlohmann::json& value = fields.at(tools);
    if (!value.is_null() && !value.empty()) {
      fields.reject(tools, fmt::format("nothing, or {} none: tools are not supported", choice));
    }
  }
  const nlohmann::json& format = fields.at("response_format");
  const bool is_text = format.is_object() && format.value("type", nlohmann::json()) == "text";
  if (!format.is_null() && !is_text) {
    fields.reject("response_format", R"({"type": "text"}: no other is supported)");
  }
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view body, const TextLimits& limits) {
  const nlohmann::json json = parse_body(body);
  const RequestFields fields(json);
  CompletionRequest request;
  request.model = fields.text("model").value_or("");
  request.prompts = read_prompts(fields, limits.per_request);
  request.sampling = read_sampling(fields, limits);
  request.echo = fields.boolean("echo", false);
  request.logprobs = fields.integer("logprobs", 0, kMaxTopLogprobs);
  request.best_of = fields.integer("best_of", 1, limits.per_prompt).value_or(request.sampling.n);
  if (request.best_of < request.sampling.n) fields.reject("best_of", "at least n");
  if (request.best_of > request.sampling.n && request.sampling.stream) {
    fields.reject("best_of", "at most n, since stream is on");
  }
  const auto num_prompts = static_cast<int64_t>(request.prompts.size());
  if (num_prompts * request.best_of > limits.per_request) {
    fields.reject("prompt",
                  fmt::format("at most {} of all prompts together, {} of each (n or best_of)",
                              counted(limits.per_request, "text"),
                              request.best_of));
  }
  reject_unsupported(fields);
  if (!fields.text("suffix").value_or("").empty()) {
    fields.reject("suffix", "an empty string or nothing: insertion is not supported");
  }
  return request;
}

ChatRequest parse_chat_request(std::string_view body, const TextLimits& limits) {
  const nlohmann::json json = parse_body(body);
  const RequestFields fields(json);
  ChatRequest request;
  request.model = fields.text("model").value_or("");
  request.sampling = read_sampling(fields, limits);
  if (const auto most = fields.integer("max_completion_tokens", 0, kMaxTokens)) {
    request.sampling.max_tokens = most;
  }
  request.logprobs = fields.boolean("logprobs", false);
  request.top_logprobs = fields.integer("top_logprobs", 0, kMaxTopLogprobs).value_or(0);
  if (request.top_logprobs > 0 && !request.logprobs) {
    fields.reject("top_logprobs", "0 unless logprobs is true");
  }
  reject_unsupported(fields);
  // Of completions alone.
  if (fields.boolean("echo", false)) fields.reject("echo", "false: an answer repeats no message");
  if (fields.integer("best_of", 1, limits.per_prompt).value_or(1) > request.sampling.n) {
    fields.reject("best_of", "at most n: all texts of a chat are answers");
  }
  const nlohmann::json& messages = fields.at("messages");
  if (!messages.is_array() || messages.empty() || messages.size() > kMaxMessages) {
    fields.reject("messages", fmt::format("a list of 1 to {} messages", kMaxMessages));
  }
  for (const auto& item : messages) {
    const std::string field = fmt::format("messages[{}]", request.messages.size());
    if (!item.is_object()) throw ApiError(400, field + ": expected an object", field);
    const std::string role = read_role(item, field + ".");
    const nlohmann::json content = item.value("content", nlohmann::json());
    // What an assistant said may have been nothing.
    const bool is_silent = content.is_null() && role == "assistant";
    request.messages.push_back({role, is_silent ? "" : read_content(content, field + ".content")});
  }
  return request;
}

TokenizeRequest parse_tokenize_request(std::string_view body) {
  const nlohmann::json json = parse_body(body);
  const RequestFields fields(json);
  const std::optional<std::string> text = fields.text("prompt");
  if (!text) fields.reject("prompt", "a string");
  return {*text, fields.boolean("add_special_tokens", true)};
}

std::vector<int64_t> parse_detokenize_request(std::string_view body) {
  const nlohmann::json json = parse_body(body);
  return token_ids(RequestFields(json).at("tokens"), "tokens");
}

}  // namespace reynard::protocol
