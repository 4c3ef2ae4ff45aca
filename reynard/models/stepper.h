#pragma once
// Generation on a GPU, token by token: steps of about as many sequences (rows without one fill them
// up) are one CUDA graph, which reads tables, tokens and carries from places that stay. Launching
// the hundreds of short kernels of a step one by one takes several times as long as running them.

#include "reynard/attention/cache.h"
#include "reynard/models/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <span>

namespace reynard::models {

class Decoder;

class Stepper {
 public:
  // Of a decoder that takes_steps(), which must outlive it and whose weights stay where they are;
  // states are of this pool.
  Stepper(Decoder& decoder, std::shared_ptr<attention::PagePool> pool);
  ~Stepper();
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  // Logits (S, V) f32 on the device after one more token of each state, valid until the next call.
  // Throws reynard::Error for a token outside the vocabulary, a state that is there twice or of
  // another pool, and where the pool is full; then the states are as before.
  at::Tensor logits(std::span<const int64_t> tokens, std::span<SequenceState* const> states);

  // Kinds of steps that are recorded; none on a CPU.
  int64_t num_recorded() const;

 private:
  struct StepKind;  // what a step's kernels depend on
  struct Recording;

  void check(std::span<const int64_t> tokens, std::span<SequenceState* const> states) const;
  Recording& recording_of(const StepKind& kind);
  void set_inputs(Recording& to,
                  std::span<const int64_t> tokens,
                  std::span<SequenceState* const> states);
  void set_carries(Recording& to, std::span<SequenceState* const> states);
  void run(Recording& recording);
  void keep_carries(Recording& recording);
  void leave_carries(const Recording& recording, std::span<SequenceState* const> states) const;

  Decoder& decoder_;
  std::shared_ptr<attention::PagePool> pool_;
  std::list<Recording> recordings_;  // the one used last in front
};

}  // namespace reynard::models
