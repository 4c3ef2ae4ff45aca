#include "reynard/evaluation/endpoint.h"

#include "reynard/config/json_file.h"
#include "reynard/evaluation/context_limit.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr double kLongestAsked = 120;      // of what a server may ask for with Retry-After
constexpr size_t kQuotedCharacters = 200;  // of an answer, in messages

// What came of one attempt: an answer, or a problem and whether another attempt may help.
struct Attempt {
  std::optional<nlohmann::json> answer;
  std::string problem;
  bool again = true;
  bool too_long = false;  // the prompt, for the model
  bool no_route = false;  // as a server answers that does not have it
  double asked_pause_s = 0;
};

std::string quoted(const std::string& body) {
  std::string text = body.substr(0, kQuotedCharacters);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The message of an OpenAI error object, or the beginning of whatever was sent.
std::string refusal(const httplib::Response& response) {
  const auto json = config::parse_json_text(response.body);
  if (json.is_object() && json.contains("error")) {
    const nlohmann::json& error = json["error"];
    if (error.is_string()) return error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return error["message"].get<std::string>();
    }
  }
  return quoted(response.body);
}

// What came of a request that got no answer.
std::string failure(httplib::Error error, double timeout_s) {
  switch (error) {
    case httplib::Error::Connection:
      return "no connection";
    case httplib::Error::Read:
      return fmt::format("the connection ended or was silent for {:g} s", timeout_s);
    case httplib::Error::Canceled:  // by try_once
      return fmt::format("no whole answer within {:g} s", timeout_s);
    default:
      return httplib::to_string(error);
  }
}

Attempt read(const httplib::Result& result, const std::string& list, double timeout_s) {
  if (!result) return {{}, failure(result.error(), timeout_s)};
  const httplib::Response& response = *result;
  if (response.status != 200) {
    Attempt attempt{{}, fmt::format("status {}: {}", response.status, refusal(response))};
    attempt.again = (response.status >= 500 && response.status != 501) || response.status == 429 ||
                    response.status == 408;
    // The code of the OpenAI API, or the words that servers use who give none.
    attempt.too_long = response.body.find("context_length_exceeded") != std::string::npos ||
                       response.body.find("maximum context length") != std::string::npos;
    attempt.no_route = response.status == 404 || response.status == 405 || response.status == 501;
    const std::string after = response.get_header_value("Retry-After");
    std::from_chars(after.data(), after.data() + after.size(), attempt.asked_pause_s);
    return attempt;
  }
  auto json = config::parse_json_text(response.body);
  if (json.is_discarded()) return {{}, fmt::format("no JSON: {}", quoted(response.body))};
  if (!json.is_object() || !json.contains(list) || !json[list].is_array() || json[list].empty()) {
    return {{}, fmt::format("no list \"{}\" in the answer: {}", list, quoted(response.body))};
  }
  return {std::move(json), ""};
}

// The library bounds the time between bytes only.
Attempt try_once(httplib::Client& client,
                 httplib::Request request,
                 const std::string& list,
                 const EndpointOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(options.timeout_s);
  std::string body;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    body.append(data, size);
    return body.size() <= options.longest_answer && Clock::now() < deadline;
  };
  httplib::Result result = client.send(request);
  if (body.size() > options.longest_answer) {
    return {.answer = {},
            .problem = fmt::format("an answer is longer than {} bytes", options.longest_answer),
            .again = false};
  }
  if (result) result->body = std::move(body);
  return read(result, list, options.timeout_s);
}

[[noreturn]] void refuse(const std::string& url, const Attempt& attempt) {
  const std::string message = fmt::format("eval: {}: {}", url, attempt.problem);
  if (attempt.too_long) throw ContextLimitError(message);
  // A model that is not known there is also a 404, which its text says.
  if (attempt.no_route && url.ends_with("/completions") && !url.ends_with("/chat/completions")) {
    throw Error(message +
                "; where only chat completions are offered, --chat asks them, for tasks that read "
                "what the model writes");
  }
  throw Error(message);
}

}  // namespace

Endpoint::Endpoint(EndpointOptions options) : options_(std::move(options)) {
  const std::string& url = options_.url;
  const size_t scheme = url.find("://");
  const bool known = url.starts_with("http://") || url.starts_with("https://");
  const size_t path = known ? url.find('/', scheme + 3) : std::string::npos;
  host_ = url.substr(0, path);
  if (!known || host_.size() == scheme + 3) {
    throw Error(fmt::format("eval: the endpoint {} is no URL; expected http://HOST:PORT", url));
  }
  base_ = path == std::string::npos ? "" : url.substr(path);
  for (const std::string ending : {"/", "/completions", "/chat", "/"}) {
    if (base_.ends_with(ending)) base_.resize(base_.size() - ending.size());
  }
  if (base_.empty()) base_ = "/v1";
}

std::string Endpoint::route_url(const std::string& route) const {
  return fmt::format("{}{}/{}", host_, base_, route);
}

nlohmann::json Endpoint::post(const std::string& route,
                              const nlohmann::json& body,
                              const std::string& list) const {
  return ask(route, config::json_text(body), list);
}

nlohmann::json Endpoint::get(const std::string& route, const std::string& list) const {
  return ask(route, "", list);
}

// An empty body: GET.
nlohmann::json Endpoint::ask(const std::string& route,
                             const std::string& body,
                             const std::string& list) const {
  httplib::Client client(host_);
  const auto whole = static_cast<time_t>(std::max(1.0, options_.timeout_s));
  client.set_connection_timeout(std::min<time_t>(whole, 30));
  client.set_read_timeout(whole);
  client.set_write_timeout(whole);
  httplib::Request request;
  request.method = body.empty() ? "GET" : "POST";
  request.path = fmt::format("{}/{}", base_, route);
  request.body = body;
  if (!body.empty()) request.set_header("Content-Type", "application/json");
  if (!options_.api_key.empty()) request.set_header("Authorization", "Bearer " + options_.api_key);
  Retries retries(options_.retries, route_url(route));
  for (;;) {
    Attempt attempt = try_once(client, request, list, options_);
    if (attempt.answer) return std::move(*attempt.answer);
    if (!attempt.again) refuse(route_url(route), attempt);
    retries.failed(attempt.problem, std::min(attempt.asked_pause_s, kLongestAsked));
  }
}

}  // namespace reynard::evaluation
