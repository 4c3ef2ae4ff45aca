#pragma once
// The OpenAI-compatible HTTP interface of an Engine: routes, keys, limits, streams, metrics. What
// requests mean is in answer.h, how texts are written in engine.h.

#include "reynard/http/connection.h"
#include "reynard/serving/answer.h"
#include "reynard/serving/engine.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

namespace reynard::http {
class Listener;
}

namespace reynard::serving {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;  // 0: any that is free
  std::string api_key;  // empty: none is asked for
  int64_t max_connections = 256;
  http::ConnectionLimits limits = {};
  int64_t drain_seconds = 30;  // that drain() waits for answers that are being sent
};

// Throws reynard::Error for a name that has no address, and for an address that is not this
// machine's or a port that is in use. HttpServer does so too; this is for those who have a model to
// read first.
void check_address(const std::string& host, int64_t port);

class HttpServer {
 public:
  // Both must outlive it. Throws reynard::Error when the address cannot be had.
  HttpServer(Engine& engine, ServedModel model, HttpOptions options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int64_t port() const { return port_; }
  // Refuses new work, lets what runs end, then stops answering. Returns when all is done.
  void drain();

 private:
  struct Exchange;  // httplib's request and response

  void add_routes();
  void guard(const Exchange& exchange,
             const std::string& route,
             void (HttpServer::*handler)(const Exchange&));
  void check_who_asks(const Exchange& exchange) const;
  void completions(const Exchange& exchange);
  void chat(const Exchange& exchange);
  void tokenize(const Exchange& exchange);
  void detokenize(const Exchange& exchange);
  void tokenizer_info(const Exchange& exchange);
  void list_models(const Exchange& exchange);
  void show_model(const Exchange& exchange);
  void health(const Exchange& exchange);
  void metrics(const Exchange& exchange);
  void page(const Exchange& exchange);
  void answer(const Exchange& exchange, Ask ask);
  void answer_whole(const Exchange& exchange, const Ask& ask, Reply& reply);
  void answer_stream(const Exchange& exchange, Ask ask, std::shared_ptr<Reply> reply);
  protocol::Envelope envelope(bool is_chat);

  Engine& engine_;
  ServedModel model_;
  HttpOptions options_;
  std::unique_ptr<http::Listener> listener_;
  int64_t port_ = 0;
  int64_t started_ = 0;  // seconds since 1970
  std::atomic<int64_t> num_requests_{0}, num_rejected_{0};
  std::atomic<bool> draining_{false};
  std::thread thread_;
};

}  // namespace reynard::serving
