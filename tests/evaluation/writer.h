#pragma once
// A model that only writes, for tests of tasks that ask for text.

#include "reynard/evaluation/scorer.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace reynard::evaluation {

// Writes what a function makes of the request.
class Writer final : public Scorer {
 public:
  using Answer = std::function<std::string(const Request&)>;
  explicit Writer(Answer answer) : answer_(std::move(answer)) {}

  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      Generated generated;
      for (const char c : answer_(request)) {
        generated.tokens.push_back(static_cast<unsigned char>(c));
      }
      responses.emplace_back(std::move(generated));
      ++answered;
    }
    return responses;
  }
  int64_t answered = 0;

 private:
  Answer answer_;
};

}  // namespace reynard::evaluation
