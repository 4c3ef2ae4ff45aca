#pragma once
// Generation on a GPU, token by token: steps of the same number of sequences are one CUDA graph,
// which reads tables, tokens and carries from places that stay. Asking for the hundreds of short
// kernels of a step one by one takes several times as long as they do.

#include "reynard/attention/step_tables.h"
#include "reynard/models/state.h"
#include "reynard/tensor/recorded_work.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

namespace reynard::models {

class Decoder;

// One new token for each of S sequences: what mixers read and leave.
struct Step {
  attention::StepTables tables;
  at::Tensor tokens;     // (S) i64
  at::Tensor positions;  // (S) i64
  at::Tensor offsets;    // (S) i64: 0, 1 ...
  at::Tensor carries;    // (L, 2, S, G D): raw keys and values of the tokens before, or undefined
  std::vector<Carry> left;  // (L) of (S, G D): those of the step's tokens, set by the mixers

  // (S, G D) of `carries`; undefined without.
  Carry carry(int64_t layer) const;
};

class Stepper {
 public:
  // Whether steps of this decoder can be recorded: all its layers take them, and its weights are
  // not trained.
  static bool can_serve(const Decoder& decoder);

  // Of a decoder that it can serve, which must outlive it; states are of this pool.
  Stepper(Decoder& decoder, std::shared_ptr<attention::PagePool> pool);
  ~Stepper();
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  // Logits (S, V) f32 on the device after one more token of each state, valid until the next call.
  // Throws reynard::Error where the pool is full; then the states are as before.
  at::Tensor logits(std::span<const int64_t> tokens, std::span<SequenceState* const> states);

 private:
  struct Kind;  // what a step's kernels depend on
  struct Recording;

  Recording& recording_of(const Kind& kind);
  void set_inputs(Recording& to,
                  std::span<const int64_t> tokens,
                  std::span<SequenceState* const> states);
  void set_carries(Recording& to, std::span<SequenceState* const> states);
  void run(Recording& recording);
  void keep_carries(Recording& recording, std::span<SequenceState* const> states);

  Decoder& decoder_;
  std::shared_ptr<attention::PagePool> pool_;
  std::list<Recording> recordings_;  // the one used last in front
};

}  // namespace reynard::models
