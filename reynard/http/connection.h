#pragma once
// One client's socket under the limits of the server: the head of a request is read here, whole and
// bounded, before the HTTP library sees it; its body and the answer pass through, with deadlines.
// Slow and endless senders are cut off, never waited for.

#include "reynard/http/chunk_framing.h"

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reynard::http {

struct ConnectionLimits {
  int64_t max_header_bytes = 32 * 1024;
  int64_t max_header_lines = 100;
  int64_t max_body_bytes = 16 << 20;
  int64_t keep_alive_seconds = 15;  // between two requests
  int64_t read_seconds = 30;        // for a whole request
  int64_t write_seconds = 10;       // without progress, then a slow reader is cut off
};

class Connection final : public httplib::Stream {
 public:
  // cut: once it is set, answers are written only as far as the socket takes them at once.
  Connection(int socket, const ConnectionLimits& limits, const std::atomic<bool>* cut = nullptr)
      : socket_(socket), limits_(limits), cut_(cut) {}

  enum class Head { kReady, kClosed, kTooLarge };
  // Waits for the head of the next request; `stopping` ends that, and the wait for what is left of
  // it or of its body.
  Head read_head(const std::atomic<bool>& stopping);
  // Of the request whose head is ready, without the empty line behind it; valid until its body is
  // read.
  std::string_view head() const { return std::string_view(buffer_).substr(0, head_bytes_); }
  // Puts another head in its place, before anything of it is read.
  void replace_head(std::string_view head);
  // Of that request; nothing: in chunks.
  std::optional<int64_t> body_bytes() const { return body_bytes_; }
  // A body in chunks went beyond the limit: what follows is no request.
  bool is_body_cut() const { return !body_bytes_ && given_bytes_ >= most_bytes(); }
  // Its head and its body were read to their last byte: what follows is the next request.
  bool is_request_read() const { return body_bytes_.has_value() && given_bytes_ == most_bytes(); }
  // It did not arrive within read_seconds.
  bool is_late() const { return is_late_; }
  // Reads and drops what the client still sends, until it closes or this time is over: unread bytes
  // would reset the connection before the client reads its answer.
  void drop_rest(std::chrono::milliseconds patience) const;

  // The client has closed its end: nobody reads the answer. One that only ended its own side
  // (shutdown(SHUT_WR)) looks the same.
  bool is_gone() const;
  // The connection whose request this thread is answering; nullptr: none.
  static const Connection* current();
  // Makes this the current one for as long as the object lives.
  struct Scope {
    explicit Scope(const Connection& connection);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;
  // The next bytes of the request, as they came. Returns as receive().
  ssize_t read_raw(char* data, size_t size);
  // Bytes received, 0 at the end of the stream, -1 at the deadline, when stopping or on failure.
  ssize_t receive(char* data, size_t size);
  bool is_cut() const { return cut_ != nullptr && *cut_; }
  // For a reader that is slow; false: it is given up.
  bool wait_writable() const;
  int64_t head_end() const { return static_cast<int64_t>(head_bytes_) + 4; }  // in bytes given
  // That may be read of a request, its head included.
  int64_t most_bytes() const;

  int socket_;
  ConnectionLimits limits_;
  const std::atomic<bool>* cut_;
  const std::atomic<bool>* stopping_ = nullptr;  // of the request that is being read
  std::string buffer_;                           // received and not read yet
  std::size_t position_ = 0;                     // of the first byte that was not read
  std::size_t head_bytes_ = 0;
  std::optional<int64_t> body_bytes_ = 0;
  ChunkFraming chunks_{0};   // of a body in chunks
  int64_t given_bytes_ = 0;  // of the request, head included, to who answers it
  bool is_late_ = false;
  Clock::time_point deadline_{};
};

}  // namespace reynard::http
