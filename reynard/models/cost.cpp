#include "reynard/models/cost.h"

#include "reynard/models/decoder.h"

#include <algorithm>
#include <string>

namespace reynard::models {

namespace {

// Mean over the queries of a sequence of the number of keys that a query sees.
double mean_visible_keys(int64_t length, int64_t window) {
  const auto T = static_cast<double>(length);
  if (window == 0 || window >= length) return (T + 1) / 2;
  const auto W = static_cast<double>(window);
  return (W * (W + 1) / 2 + (T - W) * W) / T;
}

// Keys of a sequence that a layer keeps: those of the local context, and of all with a memory.
int64_t kept_keys(const DecoderConfig& config, int64_t layer, int64_t length) {
  const int64_t window = config.has_memory() ? config.memory.window : config.attention.window;
  const int64_t local = window > 0 ? std::min(length, window) : length;
  if (!config.is_memory_layer(layer)) return local;
  const int64_t capacity = config.memory.capacity;
  return capacity > 0 ? std::min(length, capacity + local) : length;
}

// Mean over the queries of a sequence of the keys that a layer's query sees. Contexts of a memory
// begin anew: on average half of one is there.
double mean_seen_keys(const DecoderConfig& config, int64_t layer, int64_t length) {
  if (!config.has_memory()) return mean_visible_keys(length, config.attention.window);
  const double local = mean_visible_keys(std::min(length, config.memory.window), 0);
  if (!config.is_memory_layer(layer)) return local;
  double far = mean_visible_keys(length, config.memory.capacity) - local;
  if (config.memory.top_k > 0) far = std::min(far, static_cast<double>(config.memory.top_k));
  return local + std::max(far, 0.0);
}

}  // namespace

ModelCost model_cost(const DecoderConfig& config, int64_t length) {
  ModelCost cost;
  Decoder shapes(config, /*seed=*/0, at::kMeta);
  int64_t product_weights = 0, trained = 0;
  shapes.parameters([&](const std::string& name, Parameter& parameter) {
    const int64_t size = parameter.value.numel();
    cost.parameters += size;
    if (!parameter.frozen) trained += size;
    const bool is_embedding = name == "model.embeddings.weight";
    if (!is_embedding) cost.non_embedding_parameters += size;
    const double flops = 2.0 * static_cast<double>(size);
    if (name.find(".attn.") != std::string::npos) cost.mixer_flops += flops;
    if (name.find(".mlp.") != std::string::npos) cost.mlp_flops += flops;
    // A tied embedding is looked up and is the head.
    const bool is_tied_head = is_embedding && config.tie_embeddings;
    if (is_tied_head || name == "lm_head.weight") cost.head_flops += flops;
    if (is_tied_head || !is_embedding) cost.paper_flops += flops;
    if (parameter.value.dim() == 2 && (is_tied_head || !is_embedding)) product_weights += size;
    if (parameter.product) cost.compute_bytes += 2 * size;
  });
  const AttentionMixerConfig& a = config.attention;
  const auto width = static_cast<double>(a.num_heads * config.head_dim());
  const auto layers = static_cast<double>(config.num_layers);
  cost.attention_flops = 2 * layers * width * static_cast<double>(length);
  cost.paper_flops += cost.attention_flops;
  // QK^T and PV: two products of 2 D FLOPs per head and visible key.
  const int64_t key_bytes = 2 * 2 * config.num_kv_heads() * config.head_dim();
  const int64_t gate_bytes = a.forget_gate == ForgetGate::kNone ? 0 : 8 * a.num_heads;
  cost.exact_flops = 2.0 * static_cast<double>(product_weights);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    cost.exact_flops += 4 * width * mean_seen_keys(config, layer, length);
    cost.kv_cache_bytes += kept_keys(config, layer, length) * (key_bytes + gate_bytes);
  }
  cost.weight_bytes = 4 * cost.parameters;
  cost.gradient_bytes = 4 * trained;
  cost.optimizer_bytes = 8 * trained;
  return cost;
}

}  // namespace reynard::models
