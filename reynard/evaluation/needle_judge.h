#pragma once
// A model behind an OpenAI-compatible server that rates answers to the needle's question from 1 to
// 10, with the words of the FoX paper's evaluation.

#include "reynard/evaluation/endpoint.h"

#include <cstdint>
#include <optional>
#include <string>

namespace reynard::evaluation {

class NeedleJudge {
 public:
  explicit NeedleJudge(EndpointOptions options) : endpoint_(std::move(options)) {}
  // Nothing where the judge gives no [[number]]. Throws reynard::Error when it cannot be asked.
  std::optional<int64_t> rating(const std::string& written) const;

 private:
  Endpoint endpoint_;
};

// What the judge is asked about an answer.
std::string needle_judge_prompt(const std::string& written);

}  // namespace reynard::evaluation
