#pragma once
// What answers a task's requests. DecoderScorer runs a model of this project; tests and future
// remote models bring their own.

#include "reynard/evaluation/task.h"

#include <memory>
#include <span>
#include <vector>

namespace reynard::models {
class Decoder;
}

namespace reynard::evaluation {

class Scorer {
 public:
  virtual ~Scorer() = default;
  // Answers in the order of the requests. Requests of one call may be batched.
  virtual std::vector<Response> answer(std::span<const Request> requests) = 0;
};

// Runs requests on a decoder; Score requests of one call share forward passes of up to
// `batch_tokens` tokens (a longer sequence goes alone).
std::unique_ptr<Scorer> make_decoder_scorer(models::Decoder& decoder, int64_t batch_tokens);

}  // namespace reynard::evaluation
