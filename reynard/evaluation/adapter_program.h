#pragma once
// One run of an adapter's program: started, asked line by line, ended. What to do when it fails is
// the caller's business (adapter.h).

#include "reynard/tensor/error.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

// What the adapter says of its model in its first line.
struct AdapterFacts {
  std::string name;
  int64_t vocab_size = 0;    // 0: unknown
  int64_t train_length = 0;  // 0: unknown
  std::optional<int64_t> bos, eos;
  bool generates = false;  // answers requests for text too
  bool operator==(const AdapterFacts&) const = default;
};

// The program has ended, is silent or writes what is no answer; another run of it may do better.
class AdapterFailure : public Error {
 public:
  using Error::Error;
};

class AdapterProgram {
 public:
  // Starts the shell command and waits for its first line. timeout_s: for every request, from its
  // first byte to the end of the answer.
  AdapterProgram(const std::string& command, double timeout_s);
  ~AdapterProgram();  // closes its input and waits for its end, for a while
  AdapterProgram(const AdapterProgram&) = delete;
  AdapterProgram& operator=(const AdapterProgram&) = delete;

  const AdapterFacts& facts() const { return facts_; }
  nlohmann::json ask(const nlohmann::json& request);  // one line, one line
  void kill() const;                                  // it and what it has started

 private:
  using Deadline =
      std::chrono::time_point<std::chrono::steady_clock, std::chrono::duration<double>>;
  Deadline deadline() const;                             // of a request that begins now
  bool wait_for(short events, Deadline deadline) const;  // false: it has passed
  nlohmann::json read_object(Deadline deadline);
  std::string read_line(Deadline deadline);
  void write_line(const std::string& line, Deadline deadline) const;
  int wait_for_end();  // its status; kills what does not end

  double timeout_s_;
  int process_ = -1;
  int socket_ = -1;  // our end of its standard input and output
  std::string unread_;
  AdapterFacts facts_;
};

}  // namespace reynard::evaluation
