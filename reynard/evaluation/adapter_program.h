#pragma once
// One run of an adapter's program: started, asked line by line, ended. What to do when it fails is
// the caller's business (adapter.h).

#include "reynard/process/child_process.h"
#include "reynard/tensor/error.h"

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

// A whole number of at least 0 below the end; nothing where the value is none.
std::optional<int64_t> index_below(int64_t end, const nlohmann::json& value);

// What the adapter says of its model in its first line.
struct AdapterFacts {
  std::string name;
  int64_t vocab_size = 0;    // 0: unknown
  int64_t train_length = 0;  // 0: unknown
  std::optional<int64_t> bos = {}, eos = {};
  bool generates = false;  // answers requests for text too

  int64_t end_of_ids() const;  // token ids are below it: vocab_size, 2^31 where it is unknown
  bool operator==(const AdapterFacts&) const = default;
};

// The program has ended, is silent or writes what is no answer to what it was asked; another run of
// it may do better.
class AdapterFailure : public Error {
 public:
  using Error::Error;
};

class AdapterProgram {
 public:
  // Starts the shell command and waits for its first line. timeout_s: for every request, from its
  // first byte to the end of the answer.
  AdapterProgram(const std::string& command, double timeout_s);

  const AdapterFacts& facts() const { return facts_; }
  // One line, one line. The request gets an "id", counted from 1, which the answer may repeat; then
  // it must be the same. Throws AdapterFailure, and reynard::Error for NaN or Infinity in an
  // answer.
  nlohmann::json ask(nlohmann::json request);
  void kill() const { program_.kill(); }  // it and what it has started

 private:
  nlohmann::json read_object(process::Deadline deadline);

  double timeout_s_;
  process::ChildProcess program_;
  AdapterFacts facts_;
  int64_t asked_ = 0;  // requests
};

}  // namespace reynard::evaluation
