#include "reynard/http/connection.h"

#include "reynard/http/body_head.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace reynard::http {

namespace {

constexpr int kPollMs = 100;
constexpr std::size_t kReceiveBytes = 16 * 1024;

thread_local const Connection* current_connection = nullptr;

// Waits for events on a socket; false when none came in time.
bool wait_for(int socket, short events, int timeout_ms) {
  pollfd entry{.fd = socket, .events = events, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

struct Address {
  std::string ip;
  int port = 0;
};

// Of the end of a socket that getpeername or getsockname tells.
std::optional<Address> address_of(int socket, int (*tell)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (tell(socket, plain, &size) != 0) return {};
  char host[NI_MAXHOST] = {}, service[NI_MAXSERV] = {};
  constexpr int kNumbers = NI_NUMERICHOST | NI_NUMERICSERV;
  if (::getnameinfo(plain, size, host, sizeof host, service, sizeof service, kNumbers) != 0) {
    return {};
  }
  return Address{host, std::atoi(service)};
}

}  // namespace

const Connection* Connection::current() {
  return current_connection;
}

Connection::Scope::Scope(const Connection& connection) {
  current_connection = &connection;
}

Connection::Scope::~Scope() {
  current_connection = nullptr;
}

bool Connection::is_gone() const {
  // Not by reading, which would find the bytes of a next request before the end of their side.
  return wait_for(socket_, POLLRDHUP, 0);
}

ssize_t Connection::receive(char* data, size_t size) {
  while (true) {
    bool is_there = false;
    while (!is_there) {
      is_late_ = Clock::now() > deadline_;  // for those too who never pause
      if (is_late_) return -1;
      is_there = wait_for(socket_, POLLIN, kPollMs);
      if (!is_there && stopping_ && *stopping_) return -1;
    }
    const ssize_t got = ::recv(socket_, data, size, 0);
    if (got >= 0 || errno != EINTR) return got;
  }
}

Connection::Head Connection::read_head(const std::atomic<bool>& stopping) {
  stopping_ = &stopping;
  buffer_.erase(0, position_);
  position_ = 0;
  const auto idle_end = Clock::now() + std::chrono::seconds(limits_.keep_alive_seconds);
  while (buffer_.empty() && !wait_for(socket_, POLLIN, kPollMs)) {
    if (stopping || Clock::now() > idle_end) return Head::kClosed;
  }
  deadline_ = Clock::now() + std::chrono::seconds(limits_.read_seconds);
  char bytes[kReceiveBytes];
  for (bool skipped = false; true;) {
    // Some send an empty line behind a body (RFC 9112, section 2.2).
    if (!skipped && buffer_.starts_with("\r\n")) buffer_.erase(0, 2), skipped = true;
    const std::size_t end = buffer_.find("\r\n\r\n");
    const auto head_bytes = static_cast<int64_t>(std::min(end, buffer_.size()));
    const auto lines = std::count(buffer_.begin(), buffer_.begin() + head_bytes, '\n');
    if (head_bytes > limits_.max_header_bytes || lines > limits_.max_header_lines) {
      return Head::kTooLarge;
    }
    if (end != std::string::npos) {
      head_bytes_ = end;
      body_bytes_ = body_length(head());
      chunks_ = ChunkFraming(limits_.max_header_bytes);
      given_bytes_ = 0;
      return Head::kReady;
    }
    const ssize_t got = receive(bytes, sizeof bytes);
    if (got <= 0) return Head::kClosed;
    buffer_.append(bytes, static_cast<std::size_t>(got));
  }
}

void Connection::replace_head(std::string_view head) {
  buffer_.replace(0, head_bytes_, head);
  head_bytes_ = head.size();
}

void Connection::drop_rest(std::chrono::milliseconds patience) const {
  const auto deadline = Clock::now() + patience;
  char bytes[kReceiveBytes];
  auto left = patience;
  while (left.count() >= 0 && wait_for(socket_, POLLIN, static_cast<int>(left.count())) &&
         ::recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  }
}

int64_t Connection::most_bytes() const {
  return head_end() + body_bytes_.value_or(limits_.max_body_bytes);
}

bool Connection::is_readable() const {
  return position_ < buffer_.size() || wait_for(socket_, POLLIN, 0);
}

// Whether it is worth the while: write() waits for a reader that is slow.
bool Connection::is_writable() const {
  return !is_gone();
}

ssize_t Connection::read_raw(char* data, size_t size) {
  // Never beyond the request; bodies in chunks are bounded here, those with a length before.
  size = std::min(size, static_cast<size_t>(std::max<int64_t>(0, most_bytes() - given_bytes_)));
  if (size == 0) return -1;
  ssize_t got = 0;
  if (position_ < buffer_.size()) {
    got = static_cast<ssize_t>(std::min(size, buffer_.size() - position_));
    std::memcpy(data, buffer_.data() + position_, static_cast<size_t>(got));
    position_ += static_cast<size_t>(got);
  } else {
    got = receive(data, size);
  }
  if (got > 0) given_bytes_ += got;
  return got;
}

ssize_t Connection::read(char* data, size_t size) {
  if (body_bytes_) return read_raw(data, size);
  if (given_bytes_ < head_end()) {
    return read_raw(data, std::min(size, static_cast<size_t>(head_end() - given_bytes_)));
  }
  ssize_t got = 0;
  while ((got = read_raw(data, size)) > 0) {
    const std::optional<size_t> kept = chunks_.keep(data, static_cast<size_t>(got));
    if (!kept) return -1;
    if (*kept > 0) return static_cast<ssize_t>(*kept);
  }
  return got;
}

bool Connection::wait_writable() const {
  const auto end = Clock::now() + std::chrono::seconds(limits_.write_seconds);
  while (!wait_for(socket_, POLLOUT, is_cut() ? 0 : kPollMs)) {
    if (is_cut() || Clock::now() > end) return false;
  }
  return true;
}

ssize_t Connection::write(const char* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    if (!wait_writable()) return -1;
    const ssize_t sent = ::send(socket_, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
    } else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
      return -1;
    }
  }
  return static_cast<ssize_t>(size);
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  if (const auto end = address_of(socket_, ::getpeername)) ip = end->ip, port = end->port;
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  if (const auto end = address_of(socket_, ::getsockname)) ip = end->ip, port = end->port;
}

}  // namespace reynard::http
