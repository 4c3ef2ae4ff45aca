#include "reynard/models/mixers/attention.h"

#include "reynard/attention/cache.h"
#include "reynard/attention/decode.h"
#include "reynard/attention/pruning.h"
#include "reynard/models/state.h"
#include "reynard/models/step.h"
#include "reynard/ops/gated_act.h"
#include "reynard/ops/linear.h"
#include "reynard/ops/log_gate.h"
#include "reynard/ops/rms_norm.h"
#include "reynard/ops/rotary.h"
#include "reynard/ops/token_shift.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace reynard::models {

namespace {

// b_h = -ln(expm1(1/T_h)) with T_h geometric between T_min and T_max: sigmoid(b_h)^T_h = 1/e.
// Without decay times every head gets forget_bias_init.
at::Tensor initial_gate_biases(const AttentionMixerConfig& config) {
  const int64_t H = config.num_heads;
  at::Tensor biases = at::empty({H}, at::kFloat);
  if (!config.decay_time_min) return biases.fill_(config.forget_bias_init);
  const double from = std::log(*config.decay_time_min), to = std::log(*config.decay_time_max);
  for (int64_t h = 0; h < H; ++h) {
    const double time = std::exp(from + (H > 1 ? (to - from) * h / (H - 1) : 0));
    biases.data_ptr<float>()[h] = static_cast<float>(-std::log(std::expm1(1 / time)));
  }
  return biases;
}

// (S, G D): the last raw key or value before each sequence, zero where there is none; undefined
// where no sequence goes on from another.
at::Tensor previous(const Ragged& ragged,
                    int64_t layer,
                    const at::Tensor& raw,
                    at::Tensor Carry::*member) {
  if (ragged.step != nullptr) return ragged.step->carry(layer).*member;
  if (ragged.carried.empty()) return {};
  std::vector<at::Tensor> rows;
  for (const SequenceState* state : ragged.carried) {
    const at::Tensor carried = state->carry(layer).*member;
    if (!carried.defined()) {
      rows.push_back(at::zeros_like(raw.narrow(0, 0, 1)));
    } else {
      rows.push_back(carried.device() == raw.device() ? carried : carried.to(raw.device()));
    }
  }
  return rows.size() == 1 ? rows[0] : at::cat(rows);
}

}  // namespace

AttentionMixer::AttentionMixer(const DecoderConfig& config, Initializer& initializer)
    : config_(config.attention),
      norm_eps_(config.norm_eps),
      H_(config.attention.num_heads),
      G_(config.num_kv_heads()),
      D_(config.head_dim()),
      temperature_max_(config.memory.temperature_max) {
  const int64_t C = config.hidden_size;
  q_ = initializer.matrix(H_ * D_, C);
  k_ = initializer.matrix(G_ * D_, C);
  v_ = initializer.matrix(G_ * D_, C);
  o_ = initializer.matrix(C, H_ * D_);
  if (config_.qkv_bias) {
    q_bias_ = initializer.bias(H_ * D_);
    k_bias_ = initializer.bias(G_ * D_);
    v_bias_ = initializer.bias(G_ * D_);
  }
  if (config_.key_shift) k_shift_ = initializer.matrix(G_, C);
  if (config_.value_shift) v_shift_ = initializer.matrix(G_, C);
  switch (config_.forget_gate) {
    case ForgetGate::kNone:
      break;
    case ForgetGate::kFull:
      gate_ = initializer.matrix(H_, C);
      gate_.product = false;  // stays f32: errors of log f add up over the past
      gate_bias_ = initializer.bias(initial_gate_biases(config_), /*frozen=*/false);
      break;
    case ForgetGate::kDataIndependent:
    case ForgetGate::kFixed:
      gate_bias_ =
          initializer.bias(initial_gate_biases(config_), config_.forget_gate == ForgetGate::kFixed);
      break;
  }
  if (config_.output_gate != OutputGate::kNone) output_gate_ = initializer.matrix(H_ * D_, C);
  if (config_.output_norm) output_norm_ = initializer.norm(H_ * D_);
  if (config_.qk_norm == QKNorm::kTemperature) {
    temperature_ = initializer.bias(H_, config_.temperature_init);
  } else if (config_.qk_norm != QKNorm::kNone) {
    const bool shared = config_.qk_norm == QKNorm::kShared;
    q_norm_ = initializer.norm(shared ? D_ : H_ * D_);
    k_norm_ = initializer.norm(shared ? D_ : G_ * D_);
  }
}

// Measuring queries waits for them, and so does finding the bases of positions; the logit bound of
// weights that are trained is not known ahead.
bool AttentionMixer::takes_steps() const {
  const bool rotates_by_position =
      config_.rope && config_.rope_scaling.type == ops::RotaryScalingType::kDynamic;
  return !measured_eviction_ && !rotates_by_position && !q_.value.requires_grad();
}

void AttentionMixer::parameters(const ParameterVisitor& visit) {
  const auto visit_if_used = [&](const std::string& name, Parameter& parameter) {
    if (parameter.value.defined()) visit("attn." + name, parameter);
  };
  visit_if_used("q_proj.weight", q_);
  visit_if_used("q_proj.bias", q_bias_);
  visit_if_used(config_.key_shift ? "k_proj.linear.weight" : "k_proj.weight", k_);
  visit_if_used(config_.key_shift ? "k_proj.linear.bias" : "k_proj.bias", k_bias_);
  visit_if_used("k_proj.shift_proj.weight", k_shift_);
  visit_if_used(config_.value_shift ? "v_proj.linear.weight" : "v_proj.weight", v_);
  visit_if_used(config_.value_shift ? "v_proj.linear.bias" : "v_proj.bias", v_bias_);
  visit_if_used("v_proj.shift_proj.weight", v_shift_);
  visit_if_used("o_proj.weight", o_);
  visit_if_used("fgate_proj.weight", gate_);
  visit_if_used(gate_.value.defined() ? "fgate_proj.bias" : "fgate_bias", gate_bias_);
  visit_if_used("ogate_proj.weight", output_gate_);
  visit_if_used("output_norm.weight", output_norm_);
  visit_if_used("q_norm.weight", q_norm_);
  visit_if_used("k_norm.weight", k_norm_);
  visit_if_used("temperature", temperature_);
}

at::Tensor AttentionMixer::log_gate(const at::Tensor& logits, int64_t num_tokens) const {
  switch (config_.forget_gate) {
    case ForgetGate::kNone:
      return {};
    case ForgetGate::kFull:
      return ops::log_gate(logits, gate_bias_.value);
    case ForgetGate::kDataIndependent:
    case ForgetGate::kFixed:
      return at::log_sigmoid(gate_bias_.value).expand({num_tokens, H_});
  }
  return {};
}

AttentionMixer::Products AttentionMixer::products(const at::Tensor& x) const {
  Products y;
  std::vector<ops::Weight> weights;
  std::vector<at::Tensor*> outputs;
  const auto multiply = [&](const Parameter& weight, at::Tensor& output) {
    if (!weight.value.defined()) return;
    weights.push_back(weight_of(weight));
    outputs.push_back(&output);
  };
  multiply(q_, y.q);
  multiply(k_, y.k);
  multiply(v_, y.v);
  multiply(k_shift_, y.k_shift);
  multiply(v_shift_, y.v_shift);
  multiply(gate_, y.gate);
  multiply(output_gate_, y.output_gate);
  const std::vector<at::Tensor> all = ops::linears(x, weights);
  for (size_t i = 0; i < all.size(); ++i) *outputs[i] = all[i];
  return y;
}

AttentionMixer::Projections AttentionMixer::project(const at::Tensor& x,
                                                    const Ragged& ragged,
                                                    int64_t layer) const {
  const int64_t N = x.size(0);
  const Products y = products(x);
  Projections p;
  p.q = ops::add_bias(y.q, q_bias_.value);
  p.k = ops::add_bias(y.k, k_bias_.value);
  p.v = ops::add_bias(y.v, v_bias_.value);
  if (y.k_shift.defined()) {
    p.raw_k = p.k;
    p.k = ops::token_shift(p.k, y.k_shift, ragged.offsets, previous(ragged, layer, p.k, &Carry::k));
  }
  if (y.v_shift.defined()) {
    p.raw_v = p.v;
    p.v = ops::token_shift(p.v, y.v_shift, ragged.offsets, previous(ragged, layer, p.v, &Carry::v));
  }
  if (config_.qk_norm != QKNorm::kNone) {
    const auto [q_weight, k_weight] = norm_weights();
    p.q = ops::rms_norm(p.q, q_weight, config_.qk_norm_eps, H_);
    p.k = ops::rms_norm(p.k, k_weight, config_.qk_norm_eps, G_);
  }
  p.q = p.q.view({N, H_, D_});
  p.k = p.k.view({N, G_, D_});
  p.v = p.v.view({N, G_, D_});
  p.log_gate = log_gate(y.gate, N);
  p.output_gate = y.output_gate;
  return p;
}

std::pair<at::Tensor, at::Tensor> AttentionMixer::norm_weights() const {
  if (config_.qk_norm != QKNorm::kTemperature) return {q_norm_.value, k_norm_.value};
  at::Tensor t = temperature_.value;
  if (temperature_max_ > 0) t = t.clamp_max(temperature_max_);
  return {t.repeat_interleave(D_), at::ones({G_ * D_}, t.options().requires_grad(false))};
}

void AttentionMixer::rotate(Projections& p, const at::Tensor& positions) const {
  p.q = rotated(p.q, positions);
  p.k = rotated(p.k, positions);
}

at::Tensor AttentionMixer::rotated(const at::Tensor& x, const at::Tensor& positions) const {
  if (!config_.rope) return x;
  return ops::rotary(x, positions, config_.rope_base, config_.rope_scaling);
}

at::Tensor AttentionMixer::unrotated(const at::Tensor& k, const at::Tensor& positions) const {
  if (!config_.rope) return k;
  // A rotation by -a is the mirror image of a rotation by a.
  at::Tensor mirror = at::ones({D_}, k.options());
  mirror.narrow(0, D_ / 2, D_ / 2).fill_(-1);
  return ops::rotary(k * mirror, positions, config_.rope_base) * mirror;
}

attention::AttentionOptions AttentionMixer::options() const {
  // Without gates nothing can be pruned.
  const bool gated = config_.forget_gate != ForgetGate::kNone;
  return {.log_pruning_tolerance = gated ? config_.log_pruning_tolerance : 0,
          .rule = config_.pruning_rule};
}

bool AttentionMixer::KnownBound::is_of(const KnownBound& other) const {
  return bound.defined() && dtype == other.dtype && int8_keys == other.int8_keys &&
         versions == other.versions &&
         std::ranges::equal(weights, other.weights, [](const at::Tensor& a, const at::Tensor& b) {
           return a.is_same(b);
         });
}

at::Tensor AttentionMixer::logit_bound(at::ScalarType kernel_dtype, bool int8_keys) const {
  if (config_.qk_norm == QKNorm::kNone) return {};
  KnownBound of = {.weights = {}, .versions = {}, .dtype = kernel_dtype, .int8_keys = int8_keys};
  for (const Parameter* parameter : {&q_norm_, &k_norm_, &temperature_}) {
    if (!parameter->value.defined()) continue;
    // Of trained weights, which an optimizer writes to without a new version.
    if (parameter->value.requires_grad()) return computed_logit_bound(kernel_dtype, int8_keys);
    of.weights.push_back(parameter->value);
    of.versions.push_back(parameter->value.is_inference() ? 0 : parameter->value._version());
  }
  const std::scoped_lock lock(known_bound_mutex_);
  if (!known_bound_.is_of(of)) {
    of.bound = computed_logit_bound(kernel_dtype, int8_keys);
    known_bound_ = std::move(of);
  }
  return known_bound_.bound;
}

// Copied once: to wait for a copy is to wait for all of a GPU's work.
at::Tensor AttentionMixer::logit_bound_on_host(at::ScalarType kernel_dtype, bool int8_keys) const {
  const at::Tensor bound = logit_bound(kernel_dtype, int8_keys);
  const std::scoped_lock lock(known_bound_mutex_);
  if (!known_bound_.bound.is_same(bound)) return bound.cpu();
  if (!known_bound_.on_host.defined()) known_bound_.on_host = bound.cpu();
  return known_bound_.on_host;
}

at::Tensor AttentionMixer::computed_logit_bound(at::ScalarType kernel_dtype, bool int8_keys) const {
  const bool shared = config_.qk_norm == QKNorm::kShared;
  const double magnitude = config_.rope ? ops::rotary_magnitude(config_.rope_scaling) : 1;
  const at::NoGradGuard no_grad;
  const auto [q_weight, k_weight] = norm_weights();
  const auto bound = int8_keys ? attention::qk_norm_bound_of_int8_keys : attention::qk_norm_bound;
  return bound(shared ? q_weight : q_weight.view({H_, D_}),
               shared ? k_weight : k_weight.view({G_, D_}),
               H_,
               magnitude * magnitude / std::sqrt(static_cast<double>(D_)),
               config_.rope,
               kernel_dtype);
}

at::Tensor AttentionMixer::pruning_bound(const Projections& p, bool int8_keys) const {
  const bool prunes = options().log_pruning_tolerance != 0;
  return prunes ? logit_bound(p.q.scalar_type(), int8_keys) : at::Tensor();
}

int64_t AttentionMixer::evict(SequenceState& state,
                              int64_t layer,
                              int64_t horizon,
                              std::vector<attention::Eviction>& forgetting) const {
  attention::LayerCache& cache = state.cache(layer);
  const int64_t pages =
      config_.window > 0
          // The page of the last token stays: sums of gates go on from it.
          ? cache.evict_before(
                std::max<int64_t>(0, horizon - std::max<int64_t>(config_.window - 1, 1)), horizon)
          : 0;
  if (config_.forget_gate == ForgetGate::kNone) return pages;
  if (config_.qk_norm != QKNorm::kNone) {
    const attention::PageLayout& layout = cache.pool()->layout();
    const at::Tensor bound = logit_bound_on_host(layout.dtype, layout.int8);
    forgetting.push_back({.cache = &cache, .logit_bound = bound, .horizon = horizon});
  } else if (measured_eviction_) {  // no bound holds for queries to come
    const at::Tensor bound = cache.measured_bound(1 / std::sqrt(static_cast<double>(D_)));
    forgetting.push_back({.cache = &cache, .logit_bound = bound, .horizon = horizon});
  }
  return pages;
}

at::Tensor AttentionMixer::attend(const Projections& p,
                                  const Ragged& ragged,
                                  int64_t layer,
                                  Observer* observer) {
  const attention::AttentionOutput result =
      attention::attention(p.q.unsqueeze(0),
                           p.k.unsqueeze(0),
                           p.v.unsqueeze(0),
                           p.log_gate.defined() ? p.log_gate.unsqueeze(0) : p.log_gate,
                           ragged.first_key.unsqueeze(0),
                           pruning_bound(p),
                           options());
  if (observer != nullptr && observer->wants(layer)) {
    observer->attention(layer,
                        {.q = p.q,
                         .k = p.k,
                         .log_gate = p.log_gate,
                         .start = result.start.squeeze(0),
                         .first_key = ragged.first_key});
  }
  return result.out.squeeze(0);
}

void AttentionMixer::leave_carries(const Projections& p,
                                   const Ragged& ragged,
                                   int64_t layer) const {
  TORCH_INTERNAL_ASSERT(ragged.states.empty(), "attend_to_states leaves those of states");
  for (std::size_t s = 0; s < ragged.carried.size(); ++s) {
    const auto last = [&](const at::Tensor& raw) {
      return raw.defined() ? raw.narrow(0, ragged.bounds[s + 1] - 1, 1) : raw;
    };
    ragged.carried[s]->remember(layer, {.k = last(p.raw_k), .v = last(p.raw_v)});
  }
}

attention::PagedOutput AttentionMixer::attend_to_states(const Projections& p,
                                                        std::span<const int64_t> bounds,
                                                        std::span<SequenceState* const> states,
                                                        int64_t layer) const {
  std::vector<const attention::LayerCache*> caches;
  for (std::size_t s = 0; s < states.size(); ++s) {
    const auto rows = [&](const at::Tensor& t) {
      const bool all = states.size() == 1 || !t.defined();
      return all ? t : t.narrow(0, bounds[s], bounds[s + 1] - bounds[s]);
    };
    attention::LayerCache& cache = states[s]->cache(layer);
    cache.append(rows(p.k), rows(p.v), rows(p.log_gate));
    if (measured_eviction_) cache.note_queries(rows(p.q));
    states[s]->remember(layer, {.k = rows(p.raw_k), .v = rows(p.raw_v)});
    caches.push_back(&cache);
  }
  const at::Tensor bound = pruning_bound(p, caches[0]->pool()->layout().int8);
  return attention::paged_attention(p.q, bounds, caches, bound, config_.window, options());
}

at::Tensor AttentionMixer::attend_in_step(const Projections& p, Step& step, int64_t layer) const {
  step.new_carries[layer] = {.k = p.raw_k, .v = p.raw_v};
  step.logit_bounds[layer] = pruning_bound(p, step.tables.keeps_int8());
  step.tables.append(layer, p.k, p.v, p.log_gate);
  return step.tables.attend(layer, p.q, step.logit_bounds[layer], options());
}

at::Tensor AttentionMixer::gated(const at::Tensor& out, const at::Tensor& gate) const {
  if (config_.output_gate == OutputGate::kNone) {
    return config_.output_norm ? ops::rms_norm(out, output_norm_.value, norm_eps_, H_) : out;
  }
  if (config_.output_norm) {
    return ops::gated_rms_norm(out, gate, output_norm_.value, norm_eps_, H_);
  }
  return ops::gate_mul(out,
                       gate,
                       config_.output_gate == OutputGate::kSilu ? ops::Activation::kSilu
                                                                : ops::Activation::kSigmoid);
}

at::Tensor AttentionMixer::output(const at::Tensor& out, const Projections& p) const {
  const at::Tensor heads = gated(out.view({out.size(0), H_ * D_}), p.output_gate);
  return product(heads, o_);
}

at::Tensor AttentionMixer::forward(const at::Tensor& x,
                                   const Ragged& ragged,
                                   int64_t layer,
                                   Observer* observer) {
  Projections p = project(x, ragged, layer);
  rotate(p, ragged.positions);
  if (ragged.step != nullptr) return output(attend_in_step(p, *ragged.step, layer), p);
  if (ragged.states.empty()) return output(attend(p, ragged, layer, observer), p);
  const at::Tensor out = attend_to_states(p, ragged.bounds, ragged.states, layer).out;
  if (observer != nullptr && observer->wants(layer)) {
    observer->attention(
        layer,
        {.q = p.q, .k = p.k, .log_gate = p.log_gate, .start = {}, .first_key = ragged.first_key});
  }
  return output(out, p);
}

}  // namespace reynard::models
