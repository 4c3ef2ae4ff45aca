#include "reynard/models/decoder.h"

#include "reynard/attention/cache.h"
#include "reynard/config/fields.h"
#include "reynard/models/checkpointing.h"
#include "reynard/models/ragged.h"
#include "reynard/models/registry.h"
#include "reynard/models/state.h"
#include "reynard/models/step.h"
#include "reynard/ops/linear.h"
#include "reynard/ops/rms_norm.h"
#include "reynard/tensor/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace reynard::models {

// norm, mixer, norm, gated MLP around a residual that stays f32.
struct Decoder::Block {
  Block(const DecoderConfig& config, Initializer& initializer, int64_t layer)
      : norm_eps(config.norm_eps),
        act(config.hidden_act == "sigmoid" ? ops::Activation::kSigmoid : ops::Activation::kSilu),
        mixer_norm(initializer.norm(config.hidden_size)),
        mixer(find_mixer(config.mixer).make(config, initializer, layer)),
        mlp_norm(initializer.norm(config.hidden_size)),
        gate_up(initializer.matrix(2 * config.mlp_size(), config.hidden_size)),
        down(initializer.matrix(config.hidden_size, config.mlp_size())) {}

  // What the blocks before have left to add (undefined: nothing) and the residual, both (N, C) ->
  // the same pair after this block. The addition waits for the next norm, which fuses it.
  struct Stream {
    at::Tensor update, residual;
  };
  Stream forward(const Stream& in, const Ragged& ragged, int64_t layer, Observer* observer) {
    const ops::NormedSum first = add_norm(in, mixer_norm);
    const at::Tensor mixed = mixer->forward(first.normed, ragged, layer, observer);
    const ops::NormedSum second =
        ops::add_rms_norm(mixed, first.residual, mlp_norm.value, norm_eps);
    const at::Tensor inner = product(second.normed, gate_up);
    return {.update = ops::gated_linear(inner, act, weight_of(down)), .residual = second.residual};
  }

  ops::NormedSum add_norm(const Stream& in, const Parameter& norm) const {
    if (in.update.defined()) {
      return ops::add_rms_norm(in.update, in.residual, norm.value, norm_eps);
    }
    return {.normed = ops::rms_norm(in.residual, norm.value, norm_eps), .residual = in.residual};
  }

  void parameters(const std::string& prefix, const ParameterVisitor& visit) {
    visit(prefix + "attn_norm.weight", mixer_norm);
    mixer->parameters(
        [&](const std::string& name, Parameter& parameter) { visit(prefix + name, parameter); });
    visit(prefix + "mlp_norm.weight", mlp_norm);
    visit(prefix + "mlp.gate_proj.weight", gate_up);
    visit(prefix + "mlp.down_proj.weight", down);
  }

  double norm_eps;
  ops::Activation act;
  Parameter mixer_norm;  // (C)
  std::unique_ptr<Mixer> mixer;
  Parameter mlp_norm;  // (C)
  Parameter gate_up;   // (2I, C): rows 0..I-1 gate, I..2I-1 up
  Parameter down;      // (C, I)
};

Decoder::Decoder(const DecoderConfig& config, uint64_t seed, at::Device device) : config_(config) {
  config::Problems problems;
  config.check(problems, "model");
  problems.throw_if_any();
  Initializer initializer(config.initializer_range, seed, device);
  embedding_ = initializer.matrix(config.vocab_size, config.hidden_size);
  embedding_.product = config.tie_embeddings;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks_.push_back(std::make_shared<Block>(config, initializer, layer));
  }
  norm_ = initializer.norm(config.hidden_size);
  if (!config.tie_embeddings) head_ = initializer.matrix(config.vocab_size, config.hidden_size);
  set_memory({.capacity = config.memory.capacity}, config.memory.top_k);
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;

const Parameter& Decoder::head() const {
  return config_.tie_embeddings ? embedding_ : head_;
}

void Decoder::parameters(const ParameterVisitor& visit) {
  visit("model.embeddings.weight", embedding_);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    blocks_[layer]->parameters(fmt::format("model.layers.{}.", layer), visit);
  }
  visit("model.norm.weight", norm_);
  if (!config_.tie_embeddings) visit("lm_head.weight", head_);
}

void Decoder::set_compute_dtype(at::ScalarType dtype) {
  tensor::check_value(dtype == at::kFloat || dtype == at::kBFloat16,
                      "set_compute_dtype",
                      "dtype",
                      c10::toString(dtype),
                      "Float or BFloat16");
  compute_dtype_ = dtype;
  parameters([&](const std::string&, Parameter& parameter) {
    parameter.compute = parameter.product && dtype != at::kFloat
                            ? parameter.value.detach().to(dtype)
                            : at::Tensor();
  });
}

void Decoder::set_read_only(at::ScalarType products) {
  compute_dtype_ = products;
}

void Decoder::refresh_compute() {
  const at::NoGradGuard no_grad;
  parameters([](const std::string&, Parameter& parameter) {
    if (parameter.compute.defined()) parameter.compute.copy_(parameter.value);
  });
}

void Decoder::set_log_pruning_tolerance(double log_tolerance) {
  tensor::check_value(log_tolerance <= 0,
                      "set_log_pruning_tolerance",
                      "log_tolerance",
                      log_tolerance,
                      "at most 0 (0: off)");
  config_.attention.log_pruning_tolerance = log_tolerance;
  for (const auto& block : blocks_) block->mixer->set_log_pruning_tolerance(log_tolerance);
}

void Decoder::set_measured_eviction(bool on) {
  const AttentionMixerConfig& attention = config_.attention;
  tensor::check_value(
      !on || (config_.mixer == "attention" && attention.forget_gate != ForgetGate::kNone &&
              attention.qk_norm == QKNorm::kNone),
      "set_measured_eviction",
      "model",
      fmt::format("mixer {}, forget gate {}, QK-norm {}",
                  config_.mixer,
                  config::name_of(attention.forget_gate),
                  config::name_of(attention.qk_norm)),
      "attention with forget gates and without QK-norm (with it, eviction has a "
      "bound and needs no request)");
  measured_eviction_ = on;
  for (const auto& block : blocks_) block->mixer->set_measured_eviction(on);
}

void Decoder::set_memory_limits(int64_t capacity, int64_t top_k) {
  tensor::check_value(capacity >= kNoMemory,
                      "set_memory_limits",
                      "capacity",
                      capacity,
                      ">= 0 (0: all), or -1 (none)");
  tensor::check_value(top_k >= 0, "set_memory_limits", "top_k", top_k, ">= 0 (0: all)");
  MemoryStore store = memory_store_;
  store.capacity = capacity;
  set_memory(store, top_k);
}

void Decoder::set_memory_place(knn::MemoryPlace place, bool coded) {
  tensor::check_value(!coded || device().is_cpu(),
                      "set_memory_place",
                      "codes of keys",
                      "on",
                      "off where a GPU searches");
  set_memory({.capacity = memory_store_.capacity, .place = place, .coded = coded},
             config_.memory.top_k);
}

void Decoder::set_memory(const MemoryStore& store, int64_t top_k) {
  memory_store_ = store;
  config_.memory.capacity = store.capacity;
  config_.memory.top_k = top_k;
  for (const auto& block : blocks_) block->mixer->set_memory(store, top_k);
}

void Decoder::start_window(SequenceState& state) const {
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    blocks_[layer]->mixer->start_window(state, layer);
  }
}

// Keys of such a memory depend on local contexts alone.
bool Decoder::remembers_alone() const {
  const AttentionMixerConfig& attention = config_.attention;
  const bool decays =
      attention.forget_gate != ForgetGate::kNone && config_.memory.decay == MemoryDecay::kDistance;
  return config_.memory.layers.size() == 1 && !decays && attention.window == 0;
}

void Decoder::remember(const at::Tensor& tokens, SequenceState& state) {
  tensor::check_value(config_.has_memory(), "remember", "mixer", "without a memory", "one with");
  tensor::check_shape("remember", "tokens", tokens, {{"N"}});
  tensor::check_value(tokens.size(0) > 0, "remember", "number of tokens", tokens.size(0), ">= 1");
  const int64_t least = tokens.min().item<int64_t>(), largest = tokens.max().item<int64_t>();
  tensor::check_value(least >= 0 && largest < config_.vocab_size,
                      "remember",
                      "token id",
                      least < 0 ? least : largest,
                      fmt::format("0 to {} (vocab_size - 1)", config_.vocab_size - 1));
  const at::NoGradGuard no_grad;
  start_window(state);
  const int64_t count = tokens.size(0);
  const int64_t read = remembers_alone() ? std::min(tokens_to_read(count), count) : count;
  const int64_t alone = count - read;
  if (alone > 0) remember_alone(tokens.narrow(0, 0, alone), state);
  if (read > 0) {
    SequenceState* const states[] = {&state};
    hidden(tokens.narrow(0, alone, read), at::zeros({1}, at::kLong), states);
    start_window(state);
  }
  state.check_memories();
}

int64_t Decoder::tokens_to_read(int64_t tokens) const {
  const AttentionMixerConfig& attention = config_.attention;
  if (!attention.key_shift && !attention.value_shift) return 0;
  const int64_t behind = config_.num_layers - 1 - config_.memory.layers[0];
  const int64_t window = config_.memory.window;
  return behind > 0 ? (tokens - 1) % window + 1 + (behind - 1) * window : 0;
}

void Decoder::remember_alone(const at::Tensor& tokens, SequenceState& state) {
  DecoderConfig contexts = config_;
  contexts.memory.last_context = 0;
  SequenceState* const states[] = {&state};
  Ragged ragged = make_ragged(tokens, at::zeros({1}, at::kLong), {}, contexts, device());
  ragged.carried = states;
  state.pass(tokens.size(0));  // before: carries are kept by the length behind their token
  const int64_t last = config_.memory.layers[0];
  Block::Stream stream{.update = {}, .residual = rows_of(embedding_, ragged.tokens)};
  for (int64_t layer = 0; layer < last; ++layer) {
    stream = blocks_[layer]->forward(stream, ragged, layer, nullptr);
  }
  const Block& block = *blocks_[last];
  block.mixer->remember(block.add_norm(stream, block.mixer_norm).normed, ragged, last, state);
}

int64_t Decoder::evict(std::span<SequenceState* const> states, double log_tolerance) const {
  tensor::check_value(
      log_tolerance <= 0, "evict", "log_tolerance", log_tolerance, "at most 0 (0: window only)");
  int64_t pages = 0;
  std::vector<attention::Eviction> forgetting;
  for (SequenceState* const state : states) {
    const int64_t horizon = state->length() / attention::kPageTokens * attention::kPageTokens;
    if (horizon == 0) continue;
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      pages += blocks_[layer]->mixer->evict(*state, layer, horizon, forgetting);
    }
  }
  if (log_tolerance == 0 || forgetting.empty()) return pages;
  return pages + attention::LayerCache::evict(forgetting, log_tolerance);
}

at::Tensor Decoder::hidden(const at::Tensor& tokens,
                           const at::Tensor& offsets,
                           std::span<SequenceState* const> states,
                           const ForwardOptions& options) {
  return hidden(make_ragged(tokens, offsets, states, config_, device(), options.crossbatch),
                options);
}

at::Tensor Decoder::hidden(Step& step) {
  Ragged ragged;
  ragged.tokens = step.tokens, ragged.offsets = step.offsets, ragged.positions = step.positions;
  ragged.step = &step;
  return hidden(ragged, {});
}

bool Decoder::takes_steps() const {
  return std::ranges::all_of(blocks_,
                             [](const auto& block) { return block->mixer->takes_steps(); });
}

at::Tensor Decoder::hidden(const Ragged& ragged, const ForwardOptions& options) {
  // Caches hold values, not graphs: what reads them skips autograd's half of each operation.
  const bool reads_caches = !ragged.states.empty() || ragged.step != nullptr;
  const at::AutoGradMode gradients(at::GradMode::is_enabled() && !reads_caches);
  std::optional<at::AutoDispatchBelowADInplaceOrView> without_autograd;
  if (reads_caches) without_autograd.emplace();
  Block::Stream stream{.update = {}, .residual = rows_of(embedding_, ragged.tokens)};
  const bool recompute = options.checkpoint_activations && at::GradMode::is_enabled();
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const std::shared_ptr<Block>& block = blocks_[layer];
    if (!recompute) {
      stream = block->forward(stream, ragged, layer, options.observer);
      continue;
    }
    // An observer sees the first run only: the second one belongs to the backward pass.
    auto observer = std::make_shared<Observer*>(options.observer);
    const Segment segment = [block, ragged, layer, observer](const std::vector<at::Tensor>& in) {
      const Block::Stream out =
          block->forward({.update = in.size() > 1 ? in[1] : at::Tensor(), .residual = in[0]},
                         ragged,
                         layer,
                         std::exchange(*observer, nullptr));
      return std::vector<at::Tensor>{out.residual, out.update};
    };
    std::vector<at::Tensor> inputs = {stream.residual};
    if (stream.update.defined()) inputs.push_back(stream.update);
    const std::vector<at::Tensor> outputs = checkpointed(segment, inputs);
    stream = {.update = outputs[1], .residual = outputs[0]};
  }
  return blocks_.back()->add_norm(stream, norm_).normed;
}

}  // namespace reynard::models
