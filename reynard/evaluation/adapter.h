#pragma once
// A model that another program runs, asked by JSON lines over its standard input and output: token
// ids in, log-probabilities and greedy hits out (docs/evaluation.md, examples/). No look inside. A
// program that dies, stalls or writes what is no answer is started again and asked again.

#include "reynard/evaluation/adapter_program.h"
#include "reynard/evaluation/retries.h"
#include "reynard/evaluation/scorer.h"

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

struct AdapterOptions {
  std::string command;     // for the shell
  double timeout_s = 600;  // for every answer
  RetryOptions retries = {};
};

class Adapter {
 public:
  // Starts the command and waits for its first line. Throws reynard::Error at once when it ends,
  // stays silent or says something else: then the command is wrong.
  explicit Adapter(AdapterOptions options);
  const AdapterFacts& facts() const { return facts_; }
  // One request, one answer. Throws reynard::Error for an answer with an "error" or with numbers
  // that JSON does not have, for a program
  // that is another model after it was started again, and when no attempt is left.
  nlohmann::json ask(const nlohmann::json& request);

 private:
  void start();

  AdapterOptions options_;
  std::unique_ptr<AdapterProgram> program_;  // empty: has to be started again
  AdapterFacts facts_;
};

// The adapter must outlive the scorer.
std::unique_ptr<Scorer> make_adapter_scorer(Adapter& adapter);

}  // namespace reynard::evaluation
