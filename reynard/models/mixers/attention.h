#pragma once
// The attention mixer with every switch of the FoX paper: token shift, QK-norm, RoPE, forget gates,
// pruning, output norm and gate, GQA, window.

#include "reynard/attention/attention.h"
#include "reynard/attention/decode.h"
#include "reynard/models/decoder_config.h"
#include "reynard/models/mixer.h"

#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace reynard::models {

class AttentionMixer : public Mixer {
 public:
  AttentionMixer(const DecoderConfig& config, Initializer& initializer);

  at::Tensor forward(const at::Tensor& x,
                     const Ragged& ragged,
                     int64_t layer,
                     Observer* observer) override;
  // Keys left of the window; with forget gates and QK-norm (or on request: measured norms) also
  // what has been forgotten.
  int64_t evict(SequenceState& state,
                int64_t layer,
                int64_t horizon,
                std::vector<attention::Eviction>& forgetting) const override;
  void set_log_pruning_tolerance(double log_tolerance) override {
    config_.log_pruning_tolerance = log_tolerance;
  }
  bool takes_steps() const override;
  void set_measured_eviction(bool on) override { measured_eviction_ = on; }
  void parameters(const ParameterVisitor& visit) override;

  // The steps of forward, for mixers that attend to other keys too (memory_attention).
  //
  // Inputs of the attention kernel, and what the token shift carries over.
  struct Projections {
    at::Tensor q;             // (N, H, D)
    at::Tensor k, v;          // (N, G, D)
    at::Tensor log_gate;      // (N, H) f32 or undefined
    at::Tensor raw_k, raw_v;  // (N, G*D) before the shift, undefined where there is none
    at::Tensor output_gate;   // (N, H*D) or undefined
  };
  // Without positions: rotate() follows.
  Projections project(const at::Tensor& x, const Ragged& ragged, int64_t layer) const;
  // Rotates q and k where the config has RoPE.
  void rotate(Projections& p, const at::Tensor& positions) const;
  // The same of queries or keys alone.
  at::Tensor rotated(const at::Tensor& x, const at::Tensor& positions) const;
  // Undoes it for keys (N, G, D).
  at::Tensor unrotated(const at::Tensor& k, const at::Tensor& positions) const;
  // Attention over the tokens of this call -> (N, H, D) ...
  at::Tensor attend(const Projections& p, const Ragged& ragged, int64_t layer, Observer* observer);
  // ... or over these and the earlier ones of each sequence's state, which are extended.
  attention::PagedOutput attend_to_states(const Projections& p,
                                          std::span<const int64_t> bounds,
                                          std::span<SequenceState* const> states,
                                          int64_t layer) const;
  // The same of one token for each sequence, by the step's tables -> (N, H, D).
  at::Tensor attend_in_step(const Projections& p, Step& step, int64_t layer) const;
  // Leaves the last raw keys and values of sequences that read no cache in the states that the next
  // tokens go on from (Ragged::carried).
  void leave_carries(const Projections& p, const Ragged& ragged, int64_t layer) const;
  // Output norm, gate and projection: out (N, H, D) -> (N, C).
  at::Tensor output(const at::Tensor& out, const Projections& p) const;
  attention::AttentionOptions options() const;
  at::Device device() const { return o_.value.device(); }
  // (H) f32 where pruning is on and QK-norm bounds logits; else undefined. int8_keys: of keys that
  // a cache keeps as int8.
  at::Tensor pruning_bound(const Projections& p, bool int8_keys = false) const;

 private:
  // Products of the input with each weight that it has; undefined where there is none.
  struct Products {
    at::Tensor q, k, v;           // (N, H*D), (N, G*D), (N, G*D)
    at::Tensor k_shift, v_shift;  // (N, G)
    at::Tensor gate;              // (N, H) f32
    at::Tensor output_gate;       // (N, H*D)
  };
  Products products(const at::Tensor& x) const;
  // (N, H) f32 from the products with the gate's weight; undefined without a gate.
  at::Tensor log_gate(const at::Tensor& logits, int64_t num_tokens) const;
  // Weights of the norms of q and k: (H*D) and (G*D), or (D) each.
  std::pair<at::Tensor, at::Tensor> norm_weights() const;
  // (H) f32: bound of |scale q.k| from the QK-norm weights; undefined without QK-norm. Computed
  // once for weights that are not trained.
  at::Tensor logit_bound(at::ScalarType kernel_dtype, bool int8_keys) const;
  at::Tensor computed_logit_bound(at::ScalarType kernel_dtype, bool int8_keys) const;
  at::Tensor logit_bound_on_host(at::ScalarType kernel_dtype, bool int8_keys) const;
  // Output norm and gate: out (N, H*D), gate (N, H*D) before its activation -> (N, H*D).
  at::Tensor gated(const at::Tensor& out, const at::Tensor& gate) const;

  // A logit_bound and what it was computed of.
  struct KnownBound {
    std::vector<at::Tensor> weights;
    std::vector<uint32_t> versions;
    at::ScalarType dtype = at::kFloat;
    bool int8_keys = false;
    at::Tensor bound = {};
    at::Tensor on_host = {};  // of bound, once it was wanted

    bool is_of(const KnownBound& other) const;
  };

  AttentionMixerConfig config_;
  double norm_eps_;
  int64_t H_, G_, D_;
  double temperature_max_;  // 0: none
  bool measured_eviction_ = false;
  Parameter q_, k_, v_, o_;
  Parameter q_bias_, k_bias_, v_bias_;  // undefined without qkv_bias
  Parameter k_shift_, v_shift_;         // (G, C) or undefined
  Parameter gate_, gate_bias_;  // forget gate: (H, C) and (H); only the bias if not data-dependent
  Parameter output_gate_, output_norm_;  // (H*D, C), (H*D)
  Parameter q_norm_, k_norm_;            // (H*D) and (G*D), or (D) each
  Parameter temperature_;                // (H) with QKNorm::kTemperature
  mutable std::mutex known_bound_mutex_;
  mutable KnownBound known_bound_;
};

}  // namespace reynard::models
