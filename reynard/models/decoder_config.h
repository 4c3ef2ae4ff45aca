#pragma once
// What a decoder is made of. Plain data: families/ translate published config.json files to it and
// back, configs/*.toml write it directly (section [model]).

#include "reynard/attention/attention.h"
#include "reynard/config/fields.h"
#include "reynard/ops/rotary_scaling.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace reynard::models {

// Where the log gate comes from (FoX sections 3 and 4.5; published fgate_type in brackets).
enum class ForgetGate {
  kNone,             // [none] no gate
  kFull,             // [full] log sigmoid(W h + b): depends on the token
  kDataIndependent,  // [bias_only] log sigmoid(b), b learned
  kFixed,  // [fixed] log sigmoid(b), b from decay_time_min/max, never learned (like ALiBi)
};
// RMSNorm of q and k per head, weight (H*D) or (D); kTemperature: directions only, with one learned
// factor (H) on the logits (Focused Transformer's small models), temperature_init at first.
enum class QKNorm { kNone, kPerHead, kShared, kTemperature };
enum class OutputGate { kNone, kSigmoid, kSilu };
enum class MemoryMerge {
  kJoint,  // one softmax over local and memory keys
  kGated,  // two softmaxes, mixed by one learned gate per head (Memorizing Transformer)
};
// What a forget gate does to keys of the memory.
enum class MemoryDecay {
  kNone,      // nothing: it decides in the local context only
  kDistance,  // all gates between key and query act, as without a memory
};

config::EnumNames<ForgetGate> enum_names(ForgetGate);
config::EnumNames<QKNorm> enum_names(QKNorm);
config::EnumNames<OutputGate> enum_names(OutputGate);
config::EnumNames<MemoryMerge> enum_names(MemoryMerge);
config::EnumNames<MemoryDecay> enum_names(MemoryDecay);

struct AttentionMixerConfig {
  int64_t num_heads = 8;
  int64_t num_kv_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;      // 0: hidden_size / num_heads
  int64_t window = 0;        // keys a query sees, itself included; 0: all
  bool rope = false;
  double rope_base = 500000;
  ops::RotaryScaling rope_scaling;
  bool qkv_bias = false;
  ForgetGate forget_gate = ForgetGate::kFull;
  // Initial bias of the data-dependent gate. 0 (f = 0.5) is what the authors' code does; their text
  // and secondary sources advise positive values.
  double forget_bias_init = 0;
  // T_min, T_max in tokens: initial gate biases b_h = -ln(expm1(1/T_h)), T_h geometric over the
  // heads.
  std::optional<double> decay_time_min;
  std::optional<double> decay_time_max;
  QKNorm qk_norm = QKNorm::kNone;
  double qk_norm_eps = 1e-5;  // the FoX layouts fix it, whatever norm_eps says
  double temperature_init = 1;
  OutputGate output_gate = OutputGate::kNone;
  bool output_norm = false;
  bool key_shift = false;
  bool value_shift = false;
  double log_pruning_tolerance = 0;  // 0: off; -10 recommended
  attention::PruningRule pruning_rule = attention::PruningRule::kTight;

  static void fields(auto& self, auto&& field) {
    field("num_heads", self.num_heads, "query heads H", config::positive);
    field("num_kv_heads",
          self.num_kv_heads,
          "key/value heads G; 0: as many as num_heads",
          config::non_negative);
    field("head_dim",
          self.head_dim,
          "head dimension D; 0: hidden_size / num_heads",
          config::non_negative);
    field(
        "window", self.window, "keys a query sees, itself included; 0: all", config::non_negative);
    field("rope", self.rope, "rotary position embedding");
    field("rope_base", self.rope_base, "base of the rotary angles", config::positive);
    field("rope_scaling", self.rope_scaling, "rotary frequencies for long contexts");
    field("qkv_bias", self.qkv_bias, "bias of the q, k and v projections");
    field("forget_gate", self.forget_gate, "where the log gate comes from");
    field("forget_bias_init",
          self.forget_bias_init,
          "initial bias of the data-dependent gate; 0 opens it half, 4 to 0.98");
    field("decay_time_min",
          self.decay_time_min,
          "T_min of the gate biases, tokens",
          config::positive);
    field("decay_time_max",
          self.decay_time_max,
          "T_max of the gate biases, tokens",
          config::positive);
    field("qk_norm", self.qk_norm, "RMSNorm of queries and keys");
    field("qk_norm_eps", self.qk_norm_eps, "epsilon of qk_norm", config::positive);
    field("temperature_init",
          self.temperature_init,
          "initial factor of qk_norm = \"temperature\"; above 1: sharper among many keys",
          config::positive);
    field("output_gate", self.output_gate, "gate on the attention output");
    field("output_norm", self.output_norm, "RMSNorm per head on the attention output");
    field("key_shift", self.key_shift, "data-dependent token shift of keys");
    field("value_shift", self.value_shift, "data-dependent token shift of values");
    field("log_pruning_tolerance",
          self.log_pruning_tolerance,
          "natural log of the attention mass that pruning may drop; 0: off, -10 recommended",
          config::non_positive);
    field("pruning_rule", self.pruning_rule, "which rule decides what is pruned");
  }
};

// Of the mixer memory_attention (docs/memory.md).
struct MemoryConfig {
  int64_t window = 2048;        // W: tokens of a local context
  std::vector<int64_t> layers;  // layers with a memory, from 0; empty: none
  int64_t last_context = 0;  // tokens at the end of a prompt that stay local; 0: windows of W only
  bool positions = true;     // RoPE in memory layers too (local keys; memory keys have none)
  int64_t top_k = 0;         // best memory keys per query and head; 0: all
  int64_t capacity = 0;      // newest tokens that a memory keeps; 0: all
  MemoryMerge merge = MemoryMerge::kJoint;
  MemoryDecay decay = MemoryDecay::kNone;
  // Largest factor of qk_norm = "temperature" in layers with a memory; 0: none. Where it may not
  // grow, training has to move keys apart, and only that helps among more keys than it showed.
  double temperature_max = 0;
  // n: logits of layers with a memory of m keys count max(1, ln m / ln n) times, so that the best
  // key keeps its share among more keys than in training (log n scaling, Chiang and Cholak 2022);
  // not in crossbatch training. 0: once.
  int64_t log_scale_keys = 0;

  static void fields(auto& self, auto&& field) {
    field("window", self.window, "tokens of a local context", config::positive);
    field("layers", self.layers, "layers with a memory, from 0", config::non_negative);
    field("last_context",
          self.last_context,
          "tokens at the end of a prompt that stay local; 0: contexts of `window` tokens only",
          config::non_negative);
    field("positions",
          self.positions,
          "with attention.rope: rotate queries and local keys of memory layers too");
    field("top_k",
          self.top_k,
          "memory keys that a query and head attends to, the best; 0: all",
          config::non_negative);
    field("capacity",
          self.capacity,
          "newest tokens that a memory keeps; 0: all",
          config::non_negative);
    field("merge", self.merge, "one softmax over local and memory keys, or two and a gate");
    field("decay", self.decay, "what the forget gate does to memory keys");
    field("temperature_max",
          self.temperature_max,
          "largest factor of qk_norm = \"temperature\" in layers with a memory: keys must move "
          "apart instead; 0: none",
          config::non_negative);
    field("log_scale_keys",
          self.log_scale_keys,
          "n: logits, local ones too, beside a memory of m > n keys are multiplied by ln m / ln n, "
          "not in crossbatch training; the keys of one training document, say; 0: never",
          config::non_negative);
  }
};

struct DecoderConfig {
  int64_t vocab_size = 258;       // V
  int64_t hidden_size = 256;      // C
  int64_t num_layers = 4;         // L
  int64_t intermediate_size = 0;  // I; 0: 256 * ceil(int(C * hidden_ratio * 2/3) / 256)
  double hidden_ratio = 4;
  std::string hidden_act = "swish";  // swish (= silu) or sigmoid
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_embeddings = false;
  std::string mixer = "attention";  // a name of models/registry
  AttentionMixerConfig attention;
  MemoryConfig memory;  // of the mixer memory_attention only
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;

  int64_t num_kv_heads() const {
    return attention.num_kv_heads ? attention.num_kv_heads : attention.num_heads;
  }
  int64_t head_dim() const {
    return attention.head_dim ? attention.head_dim : hidden_size / attention.num_heads;
  }
  int64_t mlp_size() const;  // I after the rule above
  bool has_memory() const { return mixer == "memory_attention"; }
  bool is_memory_layer(int64_t layer) const {
    return has_memory() && std::ranges::find(memory.layers, layer) != memory.layers.end();
  }
  // Where the last context of a prompt begins that a memory reads to its end: 0 where it has none.
  int64_t last_context_begin(int64_t prompt_tokens) const {
    const bool split = has_memory() && memory.last_context > 0;
    return split ? std::max<int64_t>(prompt_tokens - memory.last_context, 0) : 0;
  }

  // Whether a prompt of so many tokens leaves what any longer text with this beginning would: not
  // where its own end says which tokens go to the memory.
  bool reads_as_a_beginning(int64_t prompt_tokens) const {
    return last_context_begin(prompt_tokens) == 0;
  }

  static void fields(auto& self, auto&& field) {
    field("vocab_size", self.vocab_size, "vocabulary V", config::positive);
    field("hidden_size", self.hidden_size, "model width C", config::positive);
    field("num_layers", self.num_layers, "layers L", config::positive);
    field("intermediate_size",
          self.intermediate_size,
          "MLP width I; 0: from hidden_ratio",
          config::non_negative);
    field("hidden_ratio",
          self.hidden_ratio,
          "MLP width as a multiple of C (before the 2/3 rule)",
          config::positive);
    field("hidden_act", self.hidden_act, "activation of the MLP gate: swish or sigmoid");
    field("norm_eps", self.norm_eps, "epsilon of the RMS norms", config::positive);
    field("initializer_range", self.initializer_range, "std of initial weights", config::positive);
    field("tie_embeddings", self.tie_embeddings, "head shares the embedding's weight");
    field("mixer",
          self.mixer,
          "sequence mixer of every layer: attention, memory_attention or transformer_xl");
    field("attention", self.attention, "attention mixer");
    field("memory", self.memory, "memory of the mixer memory_attention");
    field("bos_token_id", self.bos_token_id, "token that begins a sequence");
    field("eos_token_id", self.eos_token_id, "token that ends a sequence");
  }
  void check(config::Problems& problems, const std::string& path) const;
};

}  // namespace reynard::models
