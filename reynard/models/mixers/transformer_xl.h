#pragma once
// Transformer-XL (Dai et al. 2019) as Llama-XL has it: in training each layer also attends to the
// keys and values that the step before left of its row, without gradients; positions are relative
// because RoPE is. A token sees `attention.window` keys, whichever side of a step they lie on, so
// that elsewhere this is the attention mixer with a window.

#include "reynard/models/mixers/attention.h"

#include <cstdint>
#include <vector>

namespace reynard::models {

class BatchMemory;

class TransformerXLMixer : public Mixer {
 public:
  TransformerXLMixer(const DecoderConfig& config, Initializer& initializer)
      : attention_(config, initializer), window_(config.attention.window) {}

  at::Tensor forward(const at::Tensor& x,
                     const Ragged& ragged,
                     int64_t layer,
                     Observer* observer) override;
  int64_t evict(SequenceState& state,
                int64_t layer,
                int64_t horizon,
                std::vector<attention::Eviction>& forgetting) const override {
    return attention_.evict(state, layer, horizon, forgetting);
  }
  void set_log_pruning_tolerance(double log_tolerance) override {
    attention_.set_log_pruning_tolerance(log_tolerance);
  }
  void parameters(const ParameterVisitor& visit) override { attention_.parameters(visit); }

 private:
  // Attention of a batch's rows to themselves and to what memory holds of them -> (N, H, D).
  at::Tensor attend_rows(AttentionMixer::Projections p,
                         const Ragged& ragged,
                         int64_t layer,
                         BatchMemory& memory) const;

  AttentionMixer attention_;
  int64_t window_;  // 0: all that is remembered
};

}  // namespace reynard::models
