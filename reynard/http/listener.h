#pragma once
// The HTTP library's server with the limits of connection.h: one thread per connection up to a
// number, beyond which clients are told at once to come back later.

#include "reynard/http/connection.h"

#include <httplib.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace reynard::http {

class Listener final : public httplib::Server {
 public:
  Listener(const ConnectionLimits& limits, int64_t max_connections);

  bool is_bound() const { return svr_sock_ != INVALID_SOCKET; }
  // Once bound: lets many clients connect at the same moment. The library's queue of five drops or
  // resets what comes beyond.
  void widen_backlog();
  // Ends waits for further requests; those being answered go on. Follow it by stop().
  void close_idle() { stopping_ = true; }
  // Ends waits for readers too: who has not taken an answer loses the rest of it.
  void cut_slow_readers() { cut_ = true; }
  int64_t num_connections() const { return num_connections_; }
  int64_t num_refused() const { return num_refused_; }

 private:
  struct Threads;

  bool process_and_close_socket(socket_t socket) override;
  enum class End { kAnswered, kUnanswered, kRefused };  // kRefused: with a body that was not read
  static HandlerResponse ignore_ranges(const httplib::Request& request);
  static void correct_fields(httplib::Response& response);
  End answer_requests(Connection& connection);

  ConnectionLimits limits_;
  int64_t max_connections_;
  std::atomic<bool> stopping_{false}, cut_{false};
  std::atomic<int64_t> num_connections_{0}, num_refused_{0};
};

// Why a host's name has no address, in the system's words; empty: it has one, or is one.
std::string why_unresolved(const std::string& host);

// Why nobody can listen there now, in the system's words; empty: one can. port: 0: any.
std::string why_not_bindable(const std::string& host, int port);

// Answers, once bound, on a thread of its own from when this returns until server.stop(). Throws
// reynard::Error where it is not bound and when the server ends at once.
std::thread listen(Listener& server);

}  // namespace reynard::http
