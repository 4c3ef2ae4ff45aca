#pragma once
// A benchmark's peer in another process: a Python script that answers each line on its stdin with
// one line on its stdout.

#include "reynard/process/child_process.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace reynard::bench {

class PeerProcess {
 public:
  // script: name in bench/peers; arguments: its command line. Run by $REYNARD_PEER_PYTHON, else by
  // the Python that has torch, with as many threads as this process uses. Throws reynard::Error
  // when it cannot be started.
  PeerProcess(const std::string& script, const std::vector<std::string>& arguments);

  // Sends a line and waits for the answer. Throws reynard::Error when the peer has ended.
  std::string ask(const std::string& line);
  // The same for an answer that is a number, or so many, nan among them; throws reynard::Error for
  // any other.
  double ask_number(const std::string& line);
  std::vector<double> ask_numbers(const std::string& line, size_t count);

 private:
  [[noreturn]] void fail() const;

  std::string script_, python_;
  std::optional<process::ChildProcess> process_;
};

}  // namespace reynard::bench
