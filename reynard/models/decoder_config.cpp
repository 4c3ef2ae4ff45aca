#include "reynard/models/decoder_config.h"

#include "reynard/models/crossbatch.h"
#include "reynard/models/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

namespace reynard::models {

config::EnumNames<ForgetGate> enum_names(ForgetGate) {
  return {{ForgetGate::kNone, "none"},
          {ForgetGate::kFull, "full"},
          {ForgetGate::kDataIndependent, "data_independent"},
          {ForgetGate::kFixed, "fixed"}};
}

config::EnumNames<QKNorm> enum_names(QKNorm) {
  return {{QKNorm::kNone, "none"},
          {QKNorm::kPerHead, "per_head"},
          {QKNorm::kShared, "shared"},
          {QKNorm::kTemperature, "temperature"}};
}

config::EnumNames<OutputGate> enum_names(OutputGate) {
  return {
      {OutputGate::kNone, "none"}, {OutputGate::kSigmoid, "sigmoid"}, {OutputGate::kSilu, "silu"}};
}

config::EnumNames<MemoryMerge> enum_names(MemoryMerge) {
  return {{MemoryMerge::kJoint, "joint"}, {MemoryMerge::kGated, "gated"}};
}

config::EnumNames<MemoryDecay> enum_names(MemoryDecay) {
  return {{MemoryDecay::kNone, "none"}, {MemoryDecay::kDistance, "distance"}};
}

config::EnumNames<CrossbatchRule> enum_names(CrossbatchRule) {
  return {{CrossbatchRule::kRows, "rows"}, {CrossbatchRule::kPacks, "packs"}};
}

int64_t DecoderConfig::mlp_size() const {
  if (intermediate_size > 0) return intermediate_size;
  // int() truncates before the rounding up, as in the published code.
  const auto wanted = static_cast<int64_t>(static_cast<double>(hidden_size) * hidden_ratio * 2 / 3);
  return 256 * std::max<int64_t>(1, (wanted + 255) / 256);
}

namespace {

// Sizes beyond any model; they keep every product of two within int64 and refuse a config that only
// wants to exhaust memory.
constexpr int64_t kMaxVocabulary = int64_t{1} << 28;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeadDim = 256;  // of the attention operator
// The initial bias of a gate is -ln(expm1(1 / T)): exp(700) is still a number.
constexpr double kMinDecayTime = 1.0 / 700;

struct Checker {
  config::Problems& problems;
  const std::string& path;

  void require(bool holds, std::string_view key, const std::string& message) const {
    if (!holds) problems.add(config::key(path, key), message);
  }
  void at_most(int64_t value, int64_t limit, std::string_view key) const {
    require(value <= limit, key, fmt::format("{} is more than the limit of {}", value, limit));
  }
};

void check_heads(const DecoderConfig& config, const Checker& check) {
  const AttentionMixerConfig& a = config.attention;
  check.at_most(a.num_heads, 65536, "attention.num_heads");
  check.require(a.num_heads > 0, "attention.num_heads", "must be > 0");
  if (a.num_heads <= 0) return;
  check.require(
      a.head_dim > 0 || config.hidden_size % a.num_heads == 0,
      "attention.num_heads",
      fmt::format("must divide hidden_size = {}, or set attention.head_dim", config.hidden_size));
  check.require(config.num_kv_heads() > 0 && a.num_heads % config.num_kv_heads() == 0,
                "attention.num_kv_heads",
                fmt::format("must divide num_heads = {}", a.num_heads));
  check.require(
      a.window >= 0, "attention.window", fmt::format("{} must be >= 0 (0: all)", a.window));
  const int64_t D = config.head_dim();
  check.require(
      D > 0 && D <= kMaxHeadDim,
      "attention.head_dim",
      fmt::format("{} (hidden_size / num_heads unless given) must be 1 to {}", D, kMaxHeadDim));
  check.require(
      !a.rope || D % 2 == 0,
      "attention.head_dim",
      fmt::format("{} (hidden_size / num_heads unless given) must be even for rotary positions",
                  D));
}

void check_rotary(const DecoderConfig& config, const Checker& check) {
  using Type = ops::RotaryScalingType;
  const AttentionMixerConfig& a = config.attention;
  const ops::RotaryScaling& s = a.rope_scaling;
  check.require(a.rope_base > 0, "attention.rope_base", "must be > 0");
  if (!s) return;
  constexpr double kMaxFactor = 1e6;
  check.require(a.rope, "attention.rope_scaling.type", "needs attention.rope");
  check.require(s.factor > 0 && s.factor <= kMaxFactor,
                "attention.rope_scaling.factor",
                fmt::format("{} must be > 0 and at most {}", s.factor, kMaxFactor));
  check.require(s.type == Type::kLinear ||
                    (s.original_length > 0 && s.original_length <= ops::kMaxOriginalLength),
                "attention.rope_scaling.original_length",
                fmt::format("{} must be the context of pre-training, 1 to {}",
                            s.original_length,
                            ops::kMaxOriginalLength));
  check.require(s.type != Type::kDynamic || a.num_heads <= 0 || config.head_dim() > 2,
                "attention.rope_scaling.type",
                "dynamic needs a head dimension over 2");
  check.require(
      s.type != Type::kLlama3 || (s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor),
      "attention.rope_scaling.high_freq_factor",
      "must be more than low_freq_factor, and that more than 0");
  if (s.type != Type::kYarn) return;
  check.require(s.beta_slow > 0 && s.beta_fast >= s.beta_slow,
                "attention.rope_scaling.beta_fast",
                "must be at least beta_slow, and that more than 0");
  check.require(s.attention_factor >= 0 && s.attention_factor <= kMaxFactor,
                "attention.rope_scaling.attention_factor",
                fmt::format("must be 0 to {}", kMaxFactor));
  check.require(a.rope_base > 1, "attention.rope_base", "must be > 1 for yarn");
}

void check_gates(const AttentionMixerConfig& a, const Checker& check) {
  const bool has_times = a.decay_time_min || a.decay_time_max;
  check.require(!has_times || a.forget_gate != ForgetGate::kNone,
                "attention.decay_time_min",
                "and decay_time_max initialise forget gates; forget_gate is none");
  check.require(!has_times || a.forget_bias_init == 0,
                "attention.forget_bias_init",
                "and decay_time_min both set the initial bias; give one of them");
  check.require(a.decay_time_min.has_value() == a.decay_time_max.has_value(),
                "attention.decay_time_min",
                "and decay_time_max must be given together");
  check.require(a.forget_gate != ForgetGate::kFixed || has_times,
                "attention.forget_gate",
                "fixed needs decay_time_min and decay_time_max");
  if (a.decay_time_min && a.decay_time_max) {
    check.require(*a.decay_time_min > 0 && *a.decay_time_min <= *a.decay_time_max,
                  "attention.decay_time_min",
                  "must be > 0 and at most decay_time_max");
    check.require(
        *a.decay_time_min <= 0 || *a.decay_time_min >= kMinDecayTime,
        "attention.decay_time_min",
        fmt::format("{:g} must be at least 1/700, whose bias is a number", *a.decay_time_min));
  }
  check.require(a.forget_bias_init == 0 || a.forget_gate == ForgetGate::kFull,
                "attention.forget_bias_init",
                "is for forget_gate = \"full\" only");
  check.require(a.temperature_init == 1 || a.qk_norm == QKNorm::kTemperature,
                "attention.temperature_init",
                "is for qk_norm = \"temperature\" only");
  // They become f32 weights.
  check.require(std::abs(a.forget_bias_init) <= std::numeric_limits<float>::max(),
                "attention.forget_bias_init",
                fmt::format("{:g} is beyond the range of f32", a.forget_bias_init));
  check.require(std::abs(a.temperature_init) <= std::numeric_limits<float>::max(),
                "attention.temperature_init",
                fmt::format("{:g} is beyond the range of f32", a.temperature_init));
  check.require(a.log_pruning_tolerance <= 0, "attention.log_pruning_tolerance", "must be <= 0");
  check.require(a.output_gate != OutputGate::kSilu || !a.output_norm,
                "attention.output_gate",
                "must be sigmoid or none when output_norm is on");
}

void check_memory(const DecoderConfig& config, const Checker& check) {
  const MemoryConfig& m = config.memory;
  check.at_most(m.window, int64_t{1} << 30, "memory.window");
  check.require(config.has_memory() || m.layers.empty(),
                "memory.layers",
                "needs mixer = \"memory_attention\"");
  check.require(m.temperature_max == 0 ||
                    (config.has_memory() && config.attention.qk_norm == QKNorm::kTemperature),
                "memory.temperature_max",
                "needs mixer = \"memory_attention\" and attention.qk_norm = \"temperature\"");
  check.require(
      m.log_scale_keys == 0 || (config.has_memory() && m.log_scale_keys >= 2 &&
                                config.attention.forget_gate == ForgetGate::kNone),
      "memory.log_scale_keys",
      "must be 0 or at least 2, with mixer = \"memory_attention\" and without forget gates "
      "(what they prune rests on logits as they are)");
  if (!config.has_memory()) return;
  check.require(m.window >= 1, "memory.window", "must be >= 1");
  check.require(m.last_context >= 0 && m.last_context <= m.window,
                "memory.last_context",
                fmt::format("must be at most memory.window = {}", m.window));
  check.require(m.top_k >= 0 && m.capacity >= 0, "memory.top_k", "and capacity must be >= 0");
  check.require(
      std::ranges::all_of(m.layers, [&](int64_t l) { return l >= 0 && l < config.num_layers; }),
      "memory.layers",
      fmt::format("must be layers 0 to num_layers - 1 = {}", config.num_layers - 1));
  check.require(std::set(m.layers.begin(), m.layers.end()).size() == m.layers.size(),
                "memory.layers",
                "must name each layer once");
  check.require(config.attention.window == 0,
                "attention.window",
                "must be 0 with a memory; memory.window is its local context");
  check.require(!config.attention.rope || !config.attention.rope_scaling,
                "attention.rope_scaling",
                "is not possible with a memory, whose keys have no positions");
  check.require(m.decay == MemoryDecay::kNone || config.attention.forget_gate != ForgetGate::kNone,
                "memory.decay",
                "must be \"none\" without forget gates");
}

}  // namespace

void DecoderConfig::check(config::Problems& problems, const std::string& path) const {
  const Checker checker{problems, path};
  checker.at_most(vocab_size, kMaxVocabulary, "vocab_size");
  checker.at_most(hidden_size, kMaxWidth, "hidden_size");
  checker.at_most(num_layers, kMaxLayers, "num_layers");
  checker.require(vocab_size > 0, "vocab_size", "must be > 0");
  checker.require(hidden_size > 0, "hidden_size", "must be > 0");
  checker.require(num_layers > 0, "num_layers", "must be > 0");
  checker.require(hidden_ratio > 0 && hidden_ratio <= 64, "hidden_ratio", "must be > 0 and <= 64");
  checker.at_most(intermediate_size, kMaxWidth * 4, "intermediate_size");
  checker.require(intermediate_size >= 0, "intermediate_size", "must be >= 0");
  checker.require(hidden_act == "swish" || hidden_act == "silu" || hidden_act == "sigmoid",
                  "hidden_act",
                  fmt::format("\"{}\" must be swish, silu or sigmoid", hidden_act));
  checker.require(std::ranges::any_of(mixers(), [&](const auto& m) { return m.name == mixer; }),
                  "mixer",
                  fmt::format("\"{}\" is not a mixer; there is: {}", mixer, mixer_names()));
  for (const auto& [key, id] :
       {std::pair{"bos_token_id", bos_token_id}, std::pair{"eos_token_id", eos_token_id}}) {
    checker.require(
        !id || (*id >= 0 && *id < vocab_size),
        key,
        fmt::format("must be a token of the vocabulary, 0 to vocab_size - 1 = {}", vocab_size - 1));
  }
  check_heads(*this, checker);
  check_rotary(*this, checker);
  checker.require(norm_eps > 0, "norm_eps", "must be > 0");
  checker.require(attention.qk_norm_eps > 0, "attention.qk_norm_eps", "must be > 0");
  check_gates(attention, checker);
  check_memory(*this, checker);
}

}  // namespace reynard::models
