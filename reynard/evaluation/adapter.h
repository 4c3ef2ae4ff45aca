#pragma once
// A model that another program runs, asked by JSON lines over its standard input and output: token
// ids in, log-probabilities and greedy hits out (docs/evaluation.md, examples/). No look inside.

#include "reynard/evaluation/scorer.h"

#include <cstdint>
#include <memory>
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
};

class Adapter {
 public:
  // Starts the shell command and waits for its first line. timeout_s: for every answer. Throws
  // reynard::Error when it ends, stays silent or says something else.
  Adapter(std::string command, double timeout_s);
  const AdapterFacts& facts() const { return facts_; }
  // One request, one answer.
  nlohmann::json ask(const nlohmann::json& request);

 private:
  // The program and our end of the socket that is its standard input and output.
  struct Program {
    int process = -1;
    int socket = -1;
    Program() = default;
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    ~Program();  // closes its input and waits for its end
  };
  nlohmann::json read_object();
  void write_line(const std::string& line) const;
  [[noreturn]] void fail(const std::string& problem);

  std::string command_;
  double timeout_s_;
  Program program_;
  std::string unread_;
  AdapterFacts facts_;
};

// The adapter must outlive the scorer.
std::unique_ptr<Scorer> make_adapter_scorer(Adapter& adapter);

}  // namespace reynard::evaluation
