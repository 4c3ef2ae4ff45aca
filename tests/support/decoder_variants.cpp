#include "tests/support/decoder_variants.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace reynard::test {

using namespace models;

DecoderConfig small_config() {
  DecoderConfig config;
  config.vocab_size = 48;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.intermediate_size = 40;
  config.attention.num_heads = 4;
  return config;
}

namespace {

DecoderConfig pro() {
  DecoderConfig config = small_config();
  config.attention.qk_norm = QKNorm::kPerHead;
  config.attention.output_gate = OutputGate::kSigmoid;
  config.attention.output_norm = true;
  config.attention.key_shift = config.attention.value_shift = true;
  return config;
}

template <class Change>
Variant variant(const std::string& name, DecoderConfig config, Change change) {
  change(config.attention, config);
  return {name, config};
}

// Contexts so short that the tests' texts leave them.
void remember(DecoderConfig& config, const std::vector<int64_t>& layers) {
  config.mixer = "memory_attention";
  config.memory.window = 16;
  config.memory.layers = layers;
}

std::vector<Variant> make_variants() {
  using A = AttentionMixerConfig;
  using C = DecoderConfig;
  const DecoderConfig llama = small_config();
  return {
      variant("fox_llama", llama, [](A&, C&) {}),
      variant("fox_pro", pro(), [](A&, C&) {}),
      variant("shared_qk_norm", pro(), [](A& a, C&) { a.qk_norm = QKNorm::kShared; }),
      variant("silu_gate", llama, [](A& a, C&) { a.output_gate = OutputGate::kSilu; }),
      variant("gate_without_norm", pro(), [](A& a, C&) { a.output_norm = false; }),
      variant("norm_without_gate", pro(), [](A& a, C&) { a.output_gate = OutputGate::kNone; }),
      variant("key_shift_only", llama, [](A& a, C&) { a.key_shift = true; }),
      variant("value_shift_only", llama, [](A& a, C&) { a.value_shift = true; }),
      variant("no_position", llama, [](A& a, C&) { a.forget_gate = ForgetGate::kNone; }),
      variant("rope",
              llama,
              [](A& a, C&) {
                a.forget_gate = ForgetGate::kNone;
                a.rope = true;
                a.rope_base = 100;
              }),
      variant("window",
              pro(),
              [](A& a, C&) {
                a.window = 5;
                a.rope = true;
              }),
      variant("grouped_heads",
              pro(),
              [](A& a, C&) {
                a.num_kv_heads = 2;
                a.rope = true;
              }),
      variant("wide_heads", llama, [](A& a, C&) { a.head_dim = 24; }),
      variant("data_independent",
              llama,
              [](A& a, C&) {
                a.forget_gate = ForgetGate::kDataIndependent;
                a.decay_time_min = 2;
                a.decay_time_max = 16;
              }),
      variant("fixed",
              llama,
              [](A& a, C&) {
                a.forget_gate = ForgetGate::kFixed;
                a.decay_time_min = 2;
                a.decay_time_max = 16;
              }),
      variant("sigmoid_mlp_tied",
              llama,
              [](A& a, C& c) {
                c.hidden_act = "sigmoid";
                c.tie_embeddings = true;
                a.forget_bias_init = 2;
              }),
  };
}

std::vector<Variant> make_memory_variants() {
  using A = AttentionMixerConfig;
  using C = DecoderConfig;
  const DecoderConfig llama = small_config();
  return {
      variant("memory",
              llama,
              [](A& a, C& c) {
                remember(c, {1});
                a.forget_gate = ForgetGate::kNone;
                a.rope = true;
                a.num_kv_heads = 2;
              }),
      variant("memory_of_fox",
              pro(),
              [](A&, C& c) {
                remember(c, {0, 1});
              }),
      variant("memory_by_distance",
              pro(),
              [](A&, C& c) {
                remember(c, {0});
                c.memory.decay = MemoryDecay::kDistance;
              }),
      variant("memory_gated",
              llama,
              [](A& a, C& c) {
                remember(c, {0});
                a.forget_gate = ForgetGate::kNone;
                a.rope = true;
                a.qk_norm = QKNorm::kTemperature;
                c.memory.positions = false;
                c.memory.merge = MemoryMerge::kGated;
              }),
  };
}

DecoderConfig llama() {
  DecoderConfig config = small_config();
  config.attention.forget_gate = ForgetGate::kNone;
  config.attention.rope = true;
  config.attention.rope_base = 100;
  config.attention.num_kv_heads = 2;
  return config;
}

Variant scaled(const std::string& name, const ops::RotaryScaling& scaling) {
  DecoderConfig config = llama();
  config.attention.rope_scaling = scaling;
  return {name, config};
}

std::vector<Variant> make_llama_variants() {
  using A = AttentionMixerConfig;
  using C = DecoderConfig;
  using Type = ops::RotaryScalingType;
  return {
      scaled("rope_linear", {.type = Type::kLinear, .factor = 3}),
      scaled("rope_dynamic", {.type = Type::kDynamic, .factor = 3, .original_length = 12}),
      scaled("rope_yarn", {.type = Type::kYarn, .factor = 4, .original_length = 20}),
      scaled("rope_llama3", {.type = Type::kLlama3, .factor = 4, .original_length = 60}),
      variant("qwen2",
              llama(),
              [](A& a, C&) {
                a.qkv_bias = true;
                a.window = 7;
              }),
      variant("qwen3",
              llama(),
              [](A& a, C& c) {
                a.qk_norm = QKNorm::kShared;
                a.qk_norm_eps = c.norm_eps = 1e-3;
                a.head_dim = 16;
              }),
      variant("fla_transformer",
              llama(),
              [](A& a, C&) {
                a.qk_norm = QKNorm::kShared;
                a.qkv_bias = true;
              }),
  };
}

}  // namespace

const std::vector<Variant>& llama_variants() {
  static const std::vector<Variant> variants = make_llama_variants();
  return variants;
}

const std::vector<Variant>& attention_variants() {
  static const std::vector<Variant> variants = make_variants();
  return variants;
}

const std::vector<Variant>& memory_variants() {
  static const std::vector<Variant> variants = make_memory_variants();
  return variants;
}

void spread_weights(Decoder& decoder, uint64_t seed) {
  const at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(seed);
  decoder.parameters([&](const std::string& name, Parameter& parameter) {
    if (parameter.frozen) return;
    const bool is_norm = name.find("norm") != std::string::npos;
    // Drawn on the CPU: the same numbers on every device.
    const at::Tensor drawn = at::empty(parameter.value.sizes(), at::kFloat);
    if (parameter.value.dim() == 2) {
      drawn.normal_(0, 0.15, generator);
    } else {
      drawn.normal_(is_norm ? 1 : 0.5, 0.3, generator);
    }
    parameter.value.copy_(drawn);
  });
  decoder.refresh_compute();
}

}  // namespace reynard::test
