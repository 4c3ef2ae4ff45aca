#pragma once
// What answers a task's requests. DecoderScorer runs a model of this project; endpoint_scorer.h and
// adapter.h ask other programs; tests bring their own.

#include "reynard/evaluation/task.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace reynard::models {
class Decoder;
struct StateSnapshot;
}  // namespace reynard::models

namespace reynard::evaluation {

class Scorer {
 public:
  virtual ~Scorer() = default;
  // Answers in the order of the requests. Requests of one call may be batched.
  virtual std::vector<Response> answer(std::span<const Request> requests) = 0;

  // The same one by one, with the request's place: what was answered before one failed is not lost.
  using Taker = std::function<void(size_t, Response)>;
  virtual void answer_each(std::span<const Request> requests, const Taker& take) {
    std::vector<Response> responses = answer(requests);
    for (size_t i = 0; i < responses.size(); ++i) take(i, std::move(responses[i]));
  }

  // What the request needs and this cannot give, for a message; empty: it can be answered.
  virtual std::string cannot_answer(const Request& /*request*/) const { return ""; }
};

// Runs requests on a decoder. Score requests of one call share forward passes of up to
// `batch_tokens` tokens; texts are written together within the same bound. A longer sequence goes
// alone, in pieces of that size, which read what came before from a cache, so that memory for
// activations is bounded. With `memories` (models/saved_memory.h) every sequence begins with them,
// and goes alone; probes are not answered.
std::unique_ptr<Scorer> make_decoder_scorer(
    models::Decoder& decoder,
    int64_t batch_tokens,
    std::shared_ptr<const models::StateSnapshot> memories = {});

}  // namespace reynard::evaluation
