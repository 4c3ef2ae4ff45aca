#include "reynard/serving/http_server.h"

#include "reynard/config/json_file.h"
#include "reynard/http/listener.h"
#include "reynard/http/request_head.h"
#include "reynard/protocol/api_error.h"
#include "reynard/serving/prometheus.h"
#include "reynard/serving/web_origin.h"
#include "reynard/serving/web_page.h"
#include "reynard/tensor/check.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::serving {

namespace {

using protocol::ApiError;

constexpr const char* kJson = "application/json";
// How long a wait for a piece lasts before the client is looked after.
constexpr std::chrono::milliseconds kPatience{200};

void set_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_after_s > 0) {
    response.set_header("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(config::json_text(protocol::to_json(error)) + "\n", kJson);
}

// Takes the same time wherever the first difference is.
bool equal_in_constant_time(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string message_of_status(int status) {
  switch (status) {
    case 400:
      return "the request is not valid HTTP";
    case 404:
      return "there is nothing at this path";
    case 408:
      return "the request did not arrive in time";
    case 413:
      return "the body is too large";
    case 414:
      return "the path is too long";
    default:
      return fmt::format("status {}", status);
  }
}

bool is_form(const httplib::Request& request) {
  return request.get_header_value("Content-Type").starts_with("application/x-www-form-urlencoded");
}

bool is_multipart(const httplib::Request& request) {
  return request.get_header_value("Content-Type").starts_with("multipart/");
}

ApiError no_form_error() {
  return ApiError(415, "no form is read; send Content-Type: application/json");
}

struct KnownPath {
  std::string_view pattern;  // as it is routed: any text stands for what is in parentheses
  std::vector<std::string_view> methods;

  bool is(std::string_view path) const {
    const std::size_t fixed = pattern.find('(');
    if (fixed == pattern.npos) return path == pattern;
    return path.size() > fixed && path.starts_with(pattern.substr(0, fixed));
  }
  bool takes(std::string_view method) const {
    return std::ranges::find(methods, method) != methods.end();
  }
};

// The error of a request that no handler answered.
void explain_refusal(const std::vector<KnownPath>& known,
                     const httplib::Request& request,
                     httplib::Response& response) {
  const http::Connection* connection = http::Connection::current();
  const bool is_cut = connection != nullptr && connection->is_body_cut();
  if (is_cut) response.status = 413;
  if (connection != nullptr && connection->is_late()) response.status = 408;
  // curl -d calls its data a form, of which the library reads a few kilobytes only.
  if (response.status == 413 && !is_cut && is_form(request)) {
    set_error(response, ApiError(413, "a form is that short; send Content-Type: application/json"));
    return;
  }
  const auto path =
      std::ranges::find_if(known, [&](const KnownPath& one) { return one.is(request.path); });
  // The library has no status for methods that it routes to nobody: 404, or 400 for a few.
  const bool is_lost = response.status == 404 || response.status == 400;
  if (is_lost && path != known.end() && !path->takes(request.method)) {
    const std::string methods = fmt::format("{}", fmt::join(path->methods, ", "));
    response.set_header("Allow", methods);
    set_error(response, ApiError(405, fmt::format("this path takes {} only", methods)));
    return;
  }
  if (response.status == 400 && is_multipart(request)) {
    set_error(response, no_form_error());
    return;
  }
  set_error(response, ApiError(response.status, message_of_status(response.status)));
}

protocol::TextLimits text_limits(const EngineOptions& options) {
  return {.per_prompt = std::min(options.max_batch, options.max_waiting),
          .per_request = options.max_waiting};
}

std::shared_ptr<Reply> submit(Engine& engine, const Ask& ask) {
  try {
    return engine.submit(ask.job);
  } catch (const JobTooLong& job) {
    const int64_t written = ask.job.texts_per_prompt;
    ApiError error(400,
                   job.what(),
                   written == 1                ? "max_tokens"
                   : written > ask.texts_shown ? "best_of"
                                               : "n");
    error.code = "context_length_exceeded";
    throw error;
  }
}

ApiError draining_error() {
  ApiError error(503, "the server is stopping and takes no new work");
  error.retry_after_s = 5;
  return error;
}

// Whatever ends a request: the engine writes nothing for nobody. Does nothing once all texts have
// ended.
class CancelAtEnd {
 public:
  explicit CancelAtEnd(std::shared_ptr<Reply> reply) : reply_(std::move(reply)) {}
  CancelAtEnd(const CancelAtEnd&) = delete;
  CancelAtEnd& operator=(const CancelAtEnd&) = delete;
  ~CancelAtEnd() {
    if (reply_) reply_->cancel();
  }
  // Somebody else does it.
  void release() { reply_.reset(); }

 private:
  std::shared_ptr<Reply> reply_;
};

Error unbound(const std::string& host, int64_t port, const std::string& why) {
  return Error(fmt::format(
      "serve: {}:{} cannot be had: {}; choose another with --host and --port", host, port, why));
}

}  // namespace

void check_address(const std::string& host, int64_t port) {
  tensor::check_value(port >= 0 && port <= 65535, "serve", "--port", port, "0 to 65535");
  if (const std::string why = http::why_unresolved(host); !why.empty()) {
    throw Error(
        fmt::format("serve: --host {}: the name has no address ({}); give an address of this "
                    "machine, such as 127.0.0.1, or 0.0.0.0 for all of them",
                    host,
                    why));
  }
  const std::string why = http::why_not_bindable(host, static_cast<int>(port));
  if (!why.empty()) throw unbound(host, port, why);
}

struct HttpServer::Exchange {
  const httplib::Request& request;
  httplib::Response& response;

  void send(const nlohmann::ordered_json& json) const {
    response.set_content(config::json_text(json) + "\n", kJson);
  }
};

HttpServer::HttpServer(Engine& engine, ServedModel model, HttpOptions options)
    : engine_(engine),
      model_(std::move(model)),
      options_(std::move(options)),
      listener_(std::make_unique<http::Listener>(options_.limits, options_.max_connections)),
      started_(std::time(nullptr)) {
  add_routes();
  check_address(options_.host, options_.port);
  const auto wanted = static_cast<int>(options_.port);
  if (wanted == 0) {
    port_ = listener_->bind_to_any_port(options_.host);
  } else if (listener_->bind_to_port(options_.host, wanted)) {
    port_ = wanted;
  }
  if (port_ <= 0) throw unbound(options_.host, options_.port, "taken a moment ago");
  listener_->widen_backlog();
  thread_ = http::listen(*listener_);
}

HttpServer::~HttpServer() {
  if (!thread_.joinable()) return;
  draining_ = true;
  listener_->close_idle();
  listener_->cut_slow_readers();
  listener_->stop();
  thread_.join();
}

void HttpServer::drain() {
  draining_ = true;
  engine_.wait_until_idle();
  listener_->close_idle();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(options_.drain_seconds);
  while (listener_->num_connections() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // stop() waits for every connection, and ends streams; who reads slowly is not waited for.
  listener_->cut_slow_readers();
  listener_->stop();
  thread_.join();
}

void HttpServer::add_routes() {
  const auto route = [this](const char* path, void (HttpServer::*handler)(const Exchange&)) {
    return [this, path, handler](const httplib::Request& request, httplib::Response& response) {
      guard({request, response}, path, handler);
    };
  };
  std::vector<KnownPath> known;
  const auto get = [&](const char* path, void (HttpServer::*handler)(const Exchange&)) {
    listener_->Get(path, route(path, handler));
    known.push_back({path, {"GET", "HEAD"}});
  };
  const auto post = [&](const char* path, void (HttpServer::*handler)(const Exchange&)) {
    listener_->Post(path, route(path, handler));
    known.push_back({path, {"POST"}});
  };
  get("/", &HttpServer::page);
  get("/health", &HttpServer::health);
  get("/metrics", &HttpServer::metrics);
  get("/tokenizer_info", &HttpServer::tokenizer_info);
  get("/v1/models", &HttpServer::list_models);
  get("/v1/models/(.{1,200})", &HttpServer::show_model);
  post("/v1/completions", &HttpServer::completions);
  post("/v1/chat/completions", &HttpServer::chat);
  post("/tokenize", &HttpServer::tokenize);
  post("/detokenize", &HttpServer::detokenize);
  // Of the server as a whole (RFC 9110, section 9.3.7).
  listener_->Options(R"(\*)", [](const auto& /*request*/, httplib::Response& response) {
    response.set_header("Allow", "GET, HEAD, POST, OPTIONS");
  });
  // What the library refuses by itself gets the API's error object too.
  listener_->set_error_handler([known = std::move(known)](const auto& request, auto& response) {
    if (response.body.empty()) explain_refusal(known, request, response);
  });
}

void HttpServer::check_who_asks(const Exchange& exchange) const {
  const auto field = [&](const char* name) { return exchange.request.get_header_value(name); };
  if (options_.api_key.empty()) {
    const std::string reason = refused_origin(field("Origin"), field("Host"), options_.host);
    if (!reason.empty()) throw ApiError(403, reason);
  } else if (!equal_in_constant_time(options_.api_key, http::bearer_key(field("Authorization")))) {
    throw ApiError(401, "the API key is wrong or missing (header Authorization: Bearer KEY)");
  }
}

void HttpServer::guard(const Exchange& exchange,
                       const std::string& route,
                       void (HttpServer::*handler)(const Exchange&)) {
  ++num_requests_;
  try {
    const bool is_open = route == "/" || route == "/health";
    if (!is_open) check_who_asks(exchange);
    if (is_multipart(exchange.request)) throw no_form_error();
    (this->*handler)(exchange);
    return;
  } catch (const ApiError& error) {
    set_error(exchange.response, error);
  } catch (const QueueFull& full) {
    ApiError error(429, full.what());
    error.retry_after_s = 1;
    set_error(exchange.response, error);
  } catch (const reynard::Error& error) {
    set_error(exchange.response, ApiError(400, tokenizer::displayable(error.what())));
  } catch (const std::exception& error) {
    set_error(
        exchange.response,
        ApiError(500, fmt::format("internal error: {}", tokenizer::displayable(error.what()))));
  }
  ++num_rejected_;
}

void HttpServer::page(const Exchange& exchange) {
  exchange.response.set_content(kWebPage.data(), kWebPage.size(), "text/html; charset=utf-8");
}

void HttpServer::health(const Exchange& exchange) {
  if (draining_) throw draining_error();
  exchange.send({{"status", "ok"}});
}

void HttpServer::list_models(const Exchange& exchange) {
  exchange.send(protocol::models_json(model_.name, started_, model_.max_length));
}

void HttpServer::show_model(const Exchange& exchange) {
  check_model(exchange.request.matches[1], model_);
  exchange.send(protocol::models_json(model_.name, started_, model_.max_length)["data"][0]);
}

void HttpServer::metrics(const Exchange& exchange) {
  const EngineCounters& counters = engine_.counters();
  const std::string text = prometheus_text({
      {"requests_total", "HTTP requests", true, num_requests_},
      {"requests_rejected_total", "requests answered with an error", true, num_rejected_},
      {"connections", "open connections", false, listener_->num_connections()},
      {"connections_refused_total", "connections beyond the limit", true, listener_->num_refused()},
      {"texts_waiting", "texts that wait for their turn", false, counters.waiting},
      {"texts_running", "texts being read or written", false, counters.running},
      {"texts_finished_total", "texts written to their end", true, counters.finished},
      {"texts_cancelled_total", "texts whose client went away", true, counters.cancelled},
      {"texts_failed_total", "texts ended by a failure", true, counters.failed},
      {"prompt_tokens_total", "tokens of prompts", true, counters.prompt_tokens},
      {"prompt_tokens_reused_total",
       "tokens of prompts found in the cache",
       true,
       counters.reused_tokens},
      {"prompt_tokens_remembered_total",
       "tokens of prompts of which only the memory was computed",
       true,
       counters.remembered_tokens},
      {"generated_tokens_total", "tokens written", true, counters.new_tokens},
      {"steps_total", "passes that added tokens", true, counters.steps},
      {"cache_pages", "pages of keys and values in use", false, counters.cache_pages},
      {"cache_pages_evicted_total",
       "pages freed since no query can need them",
       true,
       counters.evicted_pages},
  });
  exchange.response.set_content(text, "text/plain; version=0.0.4; charset=utf-8");
}

void HttpServer::tokenize(const Exchange& exchange) {
  const auto request = protocol::parse_tokenize_request(exchange.request.body);
  const std::vector<int64_t> tokens = encode(model_, request.text, request.add_special_tokens);
  exchange.send(
      {{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", model_.max_length}});
}

void HttpServer::detokenize(const Exchange& exchange) {
  const std::vector<int64_t> tokens = protocol::parse_detokenize_request(exchange.request.body);
  const int64_t most = model_.tokenizer->vocab_size() - 1;
  for (const int64_t token : tokens) {
    if (token <= most) continue;
    throw ApiError(400, fmt::format("tokens has {}; expected 0 to {}", token, most), "tokens");
  }
  exchange.send({{"prompt", tokenizer::displayable(model_.tokenizer->decode(tokens))}});
}

void HttpServer::tokenizer_info(const Exchange& exchange) {
  const auto text_of = [&](std::optional<int64_t> id) {
    return id ? nlohmann::ordered_json(tokenizer::displayable(
                    model_.tokenizer->decode(std::span(&*id, 1), {.keep_special = true})))
              : nlohmann::ordered_json();
  };
  exchange.send({{"bos_token", text_of(model_.tokenizer->bos())},
                 {"eos_token", text_of(model_.tokenizer->eos())},
                 {"vocab_size", model_.tokenizer->vocab_size()}});
}

void HttpServer::completions(const Exchange& exchange) {
  const protocol::TextLimits limits = text_limits(engine_.options());
  answer(exchange,
         ask_completion(protocol::parse_completion_request(exchange.request.body, limits), model_));
}

void HttpServer::chat(const Exchange& exchange) {
  const protocol::TextLimits limits = text_limits(engine_.options());
  answer(exchange, ask_chat(protocol::parse_chat_request(exchange.request.body, limits), model_));
}

void HttpServer::answer(const Exchange& exchange, Ask ask) {
  if (draining_) throw draining_error();
  const std::shared_ptr<Reply> reply = submit(engine_, ask);
  CancelAtEnd at_end(reply);
  if (ask.stream) {
    answer_stream(exchange, std::move(ask), reply);
    at_end.release();  // the library does it when all is sent
  } else {
    answer_whole(exchange, ask, *reply);
  }
}

protocol::Envelope HttpServer::envelope(bool is_chat) {
  std::random_device random;
  return {.id = fmt::format("{}-{:08x}{:08x}", is_chat ? "chatcmpl" : "cmpl", random(), random()),
          .created = std::time(nullptr),
          .model = model_.name};
}

void HttpServer::answer_whole(const Exchange& exchange, const Ask& ask, Reply& reply) {
  Answer answer(ask, model_);
  const http::Connection* connection = http::Connection::current();
  auto looked = std::chrono::steady_clock::now();
  while (!reply.is_done()) {
    const std::optional<Piece> piece = reply.next(kPatience);
    if (const auto now = std::chrono::steady_clock::now(); now - looked >= kPatience) {
      looked = now;
      if (connection != nullptr && connection->is_gone()) {
        // One that only ended its own side still reads this.
        throw ApiError(408,
                       "the client ended its side of the connection before the answer was "
                       "complete; it must stay open until then");
      }
    }
    if (!piece) continue;
    if (!piece->error.empty()) throw ApiError(500, tokenizer::displayable(piece->error));
    answer.add(*piece);
  }
  const std::vector<protocol::Choice> choices = answer.choices();
  const protocol::Envelope head = envelope(ask.is_chat);
  exchange.send(ask.is_chat ? protocol::chat_json(head, choices, answer.usage())
                            : protocol::completion_json(head, choices, answer.usage()));
}

void HttpServer::answer_stream(const Exchange& exchange, Ask ask, std::shared_ptr<Reply> reply) {
  // Lives as long as the library sends.
  struct State {
    State(Ask asked, const ServedModel& model) : ask(std::move(asked)), answer(ask, model) {}
    Ask ask;
    Answer answer;
    std::vector<bool> begun;
  };
  auto state = std::make_shared<State>(std::move(ask), model_);
  state->begun.resize(state->ask.job.prompts.size() *
                      static_cast<std::size_t>(state->ask.job.texts_per_prompt));
  const protocol::Envelope head = envelope(state->ask.is_chat);
  const auto event = [state, head](std::span<const protocol::Choice> choices,
                                   const std::optional<protocol::Usage>& usage) {
    if (!state->ask.is_chat) {
      return protocol::server_sent_event(protocol::completion_json(head, choices, usage));
    }
    const bool first = !choices.empty() && !state->begun[choices[0].index];
    if (first) state->begun[choices[0].index] = true;
    return protocol::server_sent_event(protocol::chat_chunk_json(head, choices, usage, first));
  };
  const auto provide = [state, reply, event](size_t, httplib::DataSink& sink) {
    const auto send = [&](const std::string& text) { return sink.write(text.data(), text.size()); };
    if (reply->is_done()) {
      if (state->ask.include_usage) send(event({}, state->answer.usage()));
      send(std::string(protocol::kStreamEnd));
      sink.done();
      return true;
    }
    const std::optional<Piece> piece = reply->next(kPatience);
    if (!piece) return sink.is_writable();
    if (!piece->error.empty()) {
      const ApiError error(500, tokenizer::displayable(piece->error));
      send(protocol::server_sent_event(protocol::to_json(error)));
      sink.done();
      return true;
    }
    const protocol::Choice choice = state->answer.add(*piece);
    const bool is_empty = choice.text.empty() && choice.finish_reason.empty() &&
                          (!choice.logprobs || choice.logprobs->empty()) && !choice.prompt_logprobs;
    return is_empty ? sink.is_writable() : send(event(std::span(&choice, 1), {}));
  };
  exchange.response.set_header("Cache-Control", "no-cache");
  constexpr const char* kEvents = "text/event-stream";
  const auto cancel = [reply](bool) { reply->cancel(); };
  if (exchange.request.version == "HTTP/1.0") {  // knows no chunks: the connection ends the stream
    exchange.response.set_content_provider(kEvents, provide, cancel);
  } else {
    exchange.response.set_chunked_content_provider(kEvents, provide, cancel);
  }
}

}  // namespace reynard::serving
