#include "reynard/process/line_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace reynard::process {

namespace {

constexpr size_t kLongestLine = size_t{1} << 30;  // bytes

bool is_transient(int error_number) {
  return error_number == EINTR || error_number == EAGAIN || error_number == EWOULDBLOCK;
}

}  // namespace

Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
}

LineSocket::LineSocket(int descriptor) : descriptor_(descriptor) {}

LineSocket::~LineSocket() {
  ::close(descriptor_);
}

bool LineSocket::wait_for(short events, Deadline deadline) const {
  const std::chrono::duration<double, std::milli> left =
      deadline - std::chrono::steady_clock::now();
  if (left.count() <= 0) return false;
  pollfd waiting{descriptor_, events, 0};
  ::poll(&waiting, 1, static_cast<int>(std::min(left.count() + 1, 1e8)));
  return true;
}

LineSocket::Outcome LineSocket::send(std::string line, Deadline deadline) {
  line += '\n';
  for (size_t sent = 0; sent < line.size();) {
    if (!wait_for(POLLOUT, deadline)) return Outcome::kLate;
    const ssize_t n =
        ::send(descriptor_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && is_transient(errno)) continue;
    if (n <= 0) return Outcome::kEnded;
    sent += static_cast<size_t>(n);
  }
  return Outcome::kDone;
}

ssize_t LineSocket::read_some() {
  std::array<char, 65536> buffer;
  const ssize_t n = ::recv(descriptor_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n > 0) unread_.append(buffer.data(), static_cast<size_t>(n));
  return n;
}

const std::string& LineSocket::unread() {
  if (unread_.empty()) read_some();
  return unread_;
}

LineSocket::Received LineSocket::receive(Deadline deadline) {
  size_t searched = 0;
  size_t end = std::string::npos;
  while ((end = unread_.find('\n', searched)) == std::string::npos) {
    searched = unread_.size();
    if (unread_.size() > kLongestLine) return {Outcome::kTooLong, {}};
    if (!wait_for(POLLIN, deadline)) return {Outcome::kLate, {}};
    const ssize_t n = read_some();
    if (n < 0 && is_transient(errno)) continue;
    if (n <= 0) return {Outcome::kEnded, {}};
  }
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return {Outcome::kDone, std::move(line)};
}

}  // namespace reynard::process
