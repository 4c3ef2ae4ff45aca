#pragma once
// Lines to and from another process through a socket: unlike a pipe, writing to one whose reader is
// gone is an error and no signal. Nothing waits longer than until a deadline.

#include <sys/types.h>

#include <chrono>
#include <string>

namespace reynard::process {

using Deadline = std::chrono::time_point<std::chrono::steady_clock, std::chrono::duration<double>>;
Deadline deadline_in(double seconds);  // infinity: never

class LineSocket {
 public:
  enum class Outcome { kDone, kEnded, kLate, kTooLong };
  struct Received {
    Outcome outcome;
    std::string line;  // without its newline; empty unless done
  };

  explicit LineSocket(int descriptor);  // its owner from now on
  ~LineSocket();
  LineSocket(const LineSocket&) = delete;
  LineSocket& operator=(const LineSocket&) = delete;

  // Sends the line and a newline. kEnded: nobody reads any more.
  Outcome send(std::string line, Deadline deadline);
  // The next line, of at most 1 GiB. kEnded: nobody writes any more.
  Received receive(Deadline deadline);
  // The beginning of what has come and was not received; does not wait.
  const std::string& unread();

 private:
  ssize_t read_some();                                   // into unread_; as recv, does not wait
  bool wait_for(short events, Deadline deadline) const;  // false: the deadline has passed

  int descriptor_;
  std::string unread_;
};

}  // namespace reynard::process
