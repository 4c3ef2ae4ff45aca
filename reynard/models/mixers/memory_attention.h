#pragma once
// Attention in local contexts of `memory.window` tokens, and in chosen layers also over a memory of
// what came before them (Focused Transformer and LongLLaMA, Tworkowski et al. 2023;
// docs/memory.md). A context's keys enter the memory when it ends, without positions; where they
// are not finite, all that attends to that memory is NaN. Projections, gates and norms are the
// attention mixer's.

#include "reynard/models/layer_memory.h"
#include "reynard/models/mixers/attention.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace reynard::models {

class MemoryAttentionMixer : public Mixer {
 public:
  MemoryAttentionMixer(const DecoderConfig& config, Initializer& initializer, int64_t layer);

  at::Tensor forward(const at::Tensor& x,
                     const Ragged& ragged,
                     int64_t layer,
                     Observer* observer) override;
  void start_window(SequenceState& state, int64_t layer) const override;
  void remember(const at::Tensor& x,
                const Ragged& ragged,
                int64_t layer,
                SequenceState& state) const override;
  void set_log_pruning_tolerance(double log_tolerance) override {
    attention_.set_log_pruning_tolerance(log_tolerance);
  }
  void set_memory(const MemoryStore& store, int64_t top_k) override {
    store_ = store;
    memory_.top_k = top_k;
  }
  void parameters(const ParameterVisitor& visit) override;

 private:
  using Projections = AttentionMixer::Projections;
  using KeyPart = attention::KeyPart;

  // What the attention of one call reads.
  struct Inputs {
    Projections p;        // keys with positions
    at::Tensor memory_k;  // (N, G, D): without
    at::Tensor sums;      // (1, H, N) f64: gate sums through all tokens; undefined without gates
    at::Tensor bound;     // of AttentionMixer::pruning_bound
  };
  Inputs inputs(const at::Tensor& x, const Ragged& ragged, int64_t layer) const;

  // What an observer is shown: with a memory also the keys in it.
  AttentionView view(const Inputs& in, const Ragged& ragged) const;

  // All -> (N, H, D).
  at::Tensor attend_windows(const Inputs& in, const Ragged& ragged) const;
  at::Tensor attend_rows(const Inputs& in, const Ragged& ragged, int64_t layer) const;  // kRows
  at::Tensor attend_packs(const Inputs& in, const Ragged& ragged) const;                // kPacks
  at::Tensor attend_states(const Inputs& in, const Ragged& ragged, int64_t layer) const;
  at::Tensor attend_states(Projections p,
                           std::span<const int64_t> bounds,
                           std::span<SequenceState* const> states,
                           int64_t layer) const;

  // The keys of a query block: all local and contexts' keys, and of the memory all or the best.
  struct Keys {
    KeyPart local;
    std::vector<KeyPart> contexts;
    std::optional<KeyPart> memory;
  };
  // q (B, Tq, H, D) over its keys -> (B, Tq, H, D).
  at::Tensor attend(const at::Tensor& q,
                    const at::Tensor& query_sums,
                    Keys keys,
                    const at::Tensor& bound) const;
  bool selects(int64_t memory_keys) const {
    return memory_.top_k > 0 && memory_.top_k < memory_keys;
  }
  // What logits, local ones too, beside so many memory keys are multiplied by
  // (memory.log_scale_keys). An observer is not shown it where there are states.
  double logit_factor(int64_t memory_keys) const;
  // Local and memory attention as one -> (B, Tq, H, D).
  at::Tensor merged(const attention::AttentionOutput& local,
                    const attention::AttentionOutput& memory) const;
  // What the rows' memories of earlier steps hold, for tokens [begin, begin + size) of each.
  // before (b, H, 1): gate sums from the row's begin to `begin`; undefined: none.
  std::optional<KeyPart> batch_memory(const Ragged& ragged,
                                      int64_t layer,
                                      int64_t begin,
                                      int64_t size,
                                      const at::Tensor& before) const;
  // q (1, T, H, D) over a sequence's memory: all of it or the best.
  attention::AttentionOutput attend_memory(const at::Tensor& q,
                                           const at::Tensor& query_sums,
                                           const LayerMemory& memory) const;
  bool decays() const { return memory_.decay == MemoryDecay::kDistance; }

  AttentionMixer attention_;
  MemoryConfig memory_;
  MemoryStore store_;  // its capacity, not that of memory_, is the decoder's
  bool has_memory_;    // this layer
  Parameter gate_;     // (H): MemoryMerge::kGated
};

}  // namespace reynard::models
