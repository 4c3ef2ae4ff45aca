#include "reynard/http/listener.h"

#include "reynard/config/json_file.h"
#include "reynard/http/answer_coding.h"
#include "reynard/http/body_head.h"
#include "reynard/http/request_head.h"
#include "reynard/http/request_target.h"
#include "reynard/protocol/api_error.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace reynard::http {

namespace {

constexpr int kMaxRequests = 1000;  // on one connection
// How long a client that was refused may go on sending before it reads why.
constexpr std::chrono::milliseconds kRefusedPatience{2000};

// Set while a connection is only told that there are too many.
thread_local bool refusing = false;

// Without the library's SO_REUSEPORT, by which two servers would share a port unnoticed.
void allow_reuse(socket_t socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

// An answer without the library, where it does not get to see a request.
void refuse(Connection& connection, int status, const char* reason, const std::string& message) {
  const std::string body =
      config::json_text(protocol::to_json(protocol::ApiError(status, message))) + "\n";
  const std::string answer = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n{}Connection: close\r\n\r\n{}",
      status,
      reason,
      body.size(),
      status == 503 ? "Retry-After: 1\r\n" : "",
      body);
  connection.write(answer.data(), answer.size());
}

// Nothing: the request is read on.
std::optional<Refusal> refused_head(std::string_view head, int64_t max_body_bytes) {
  constexpr std::size_t kMaxLineBytes = CPPHTTPLIB_HEADER_MAX_LENGTH - 2;  // but for CR LF
  if (auto refusal = refused_line(head, kMaxLineBytes)) return refusal;
  if (auto refusal = refused_method(head)) return refusal;
  if (auto refusal = refused_body(head, max_body_bytes)) return refusal;
  return refused_target(head);
}

}  // namespace

struct Listener::Threads final : httplib::TaskQueue {
  explicit Threads(Listener& owner) : listener(owner) {}

  void enqueue(std::function<void()> answer) override {
    bool has_room = listener.num_connections_ < listener.max_connections_;
    if (has_room) {
      ++listener.num_connections_;
      try {
        std::thread([this, answer] {
          answer();
          const std::lock_guard lock(mutex);
          --listener.num_connections_;
          all_ended.notify_all();
        }).detach();
      } catch (const std::system_error&) {  // no further thread can be had
        --listener.num_connections_;
        has_room = false;
      }
    }
    if (has_room) return;
    ++listener.num_refused_;
    refusing = true;
    answer();
    refusing = false;
  }

  void shutdown() override {
    std::unique_lock lock(mutex);
    all_ended.wait(lock, [&] { return listener.num_connections_ == 0; });
  }

  Listener& listener;
  std::mutex mutex;
  std::condition_variable all_ended;
};

Listener::Listener(const ConnectionLimits& limits, int64_t max_connections)
    : limits_(limits), max_connections_(max_connections) {
  new_task_queue = [this] { return new Threads(*this); };
  set_payload_max_length(static_cast<size_t>(limits.max_body_bytes));
  // What answers promise.
  set_keep_alive_timeout(limits.keep_alive_seconds);
  set_keep_alive_max_count(kMaxRequests);
  set_tcp_nodelay(true);
  set_pre_routing_handler([](const httplib::Request& request, httplib::Response& /*response*/) {
    return ignore_ranges(request);
  });
  set_post_routing_handler([](const httplib::Request& /*request*/, httplib::Response& response) {
    correct_fields(response);
  });
  set_socket_options(allow_reuse);
}

// Ranges are of files, and the library would cut any answer to them, streams and those to POST too.
Listener::HandlerResponse Listener::ignore_ranges(const httplib::Request& request) {
  // The library owns the request, lets handlers read it and has no switch for this.
  const_cast<httplib::Request&>(request).ranges.clear();
  return HandlerResponse::Unhandled;
}

// The library answers to HEAD that there are ranges, and promises that the connection stays where
// the rest of a request that it gave up may follow.
void Listener::correct_fields(httplib::Response& response) {
  response.headers.erase("Accept-Ranges");
  const Connection* connection = Connection::current();
  if (connection == nullptr || connection->is_request_read()) return;
  response.headers.erase("Keep-Alive");
  response.headers.erase("Connection");
  response.set_header("Connection", "close");
}

void Listener::widen_backlog() {
  ::listen(svr_sock_, static_cast<int>(max_connections_));
}

Listener::End Listener::answer_requests(Connection& connection) {
  bool answered = false;
  const auto end = [&] { return answered ? End::kAnswered : End::kUnanswered; };
  for (int left = kMaxRequests; left > 0; --left) {
    const Connection::Head head = connection.read_head(stopping_);
    if (head == Connection::Head::kTooLarge) {
      refuse(connection,
             431,
             "Request Header Fields Too Large",
             fmt::format("the head of a request may have {} lines and {} bytes",
                         limits_.max_header_lines,
                         limits_.max_header_bytes));
      return End::kRefused;
    }
    if (head != Connection::Head::kReady) return end();
    if (const auto refusal = refused_head(connection.head(), limits_.max_body_bytes)) {
      refuse(connection, refusal->status, refusal->reason, refusal->message);
      return End::kRefused;
    }
    if (const auto routed = with_origin_form(connection.head())) connection.replace_head(*routed);
    if (const auto head = with_known_codings(connection.head())) connection.replace_head(*head);
    const Connection::Scope scope(connection);
    bool closed = false;
    const bool in_chunks = !connection.body_bytes();
    const bool is_last = left == 1 || stopping_ || in_chunks || ends_connection(connection.head());
    answered = process_request(connection, is_last, closed, {});
    // What was not read of a request would be taken for the next one.
    if (connection.is_body_cut() || !(in_chunks || connection.is_request_read())) {
      return End::kRefused;
    }
    if (!answered || closed || is_last) return end();
  }
  return end();
}

bool Listener::process_and_close_socket(socket_t socket) {
  End end = End::kUnanswered;
  try {
    Connection connection(socket, limits_, &cut_);
    if (refusing) {
      refuse(connection, 503, "Service Unavailable", "too many connections; try again later");
    } else {
      end = answer_requests(connection);
    }
    ::shutdown(socket, SHUT_WR);
    connection.drop_rest(end == End::kRefused ? kRefusedPatience : std::chrono::milliseconds(0));
  } catch (const std::exception&) {
    end = End::kUnanswered;  // this connection ends; others, and the process, go on
  }
  ::close(socket);
  return end == End::kAnswered;
}

std::string why_unresolved(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failure == EAI_SYSTEM) return std::generic_category().message(errno);
  if (failure != 0) return ::gai_strerror(failure);
  ::freeaddrinfo(found);
  return {};
}

std::string why_not_bindable(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) return ::gai_strerror(failure);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  std::error_code reason;
  for (const addrinfo* address = found; address; address = address->ai_next) {
    const int socket = ::socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    allow_reuse(socket);  // of none it fails, as bind does
    const bool bound = ::bind(socket, address->ai_addr, address->ai_addrlen) == 0;
    reason.assign(errno, std::generic_category());
    ::close(socket);
    if (bound) return {};
  }
  return reason.message();
}

std::thread listen(Listener& server) {
  // Seen beforehand: the library says that it runs even as it finds out.
  if (!server.is_bound()) throw Error("http: listen: expected a socket that is bound");
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  std::thread thread([&server, ended] {
    server.listen_after_bind();
    *ended = true;
  });
  while (!server.is_running() && !*ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!*ended) return thread;
  thread.join();
  throw Error("http: the server ended as it began to listen");
}

}  // namespace reynard::http
