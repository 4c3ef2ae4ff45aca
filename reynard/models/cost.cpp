#include "reynard/models/cost.h"

#include "reynard/models/decoder.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
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
  return capacity > 0 ? local + std::min(length - local, capacity) : length;
}

// Mean over the queries of a sequence of the number of keys that a layer's query sees. Contexts of
// a memory of W tokens begin anew, and all queries of context u see min(u W, most) keys before it.
double mean_seen_keys(const DecoderConfig& config, int64_t layer, int64_t length) {
  if (!config.has_memory()) return mean_visible_keys(length, config.attention.window);
  const MemoryConfig& memory = config.memory;
  const int64_t contexts = length / memory.window;  // whole ones
  const auto T = static_cast<double>(length), W = static_cast<double>(memory.window),
             n = static_cast<double>(contexts), rest = static_cast<double>(length % memory.window);
  const double local = (n * W * (W + 1) + rest * (rest + 1)) / 2;
  if (!config.is_memory_layer(layer)) return local / T;
  int64_t most = length;
  for (const int64_t limit : {memory.capacity, memory.top_k}) {
    if (limit > 0) most = std::min(most, limit);
  }
  const auto m = static_cast<double>(most);
  // Contexts 0 ... below - 1 see all keys before them.
  const auto below = static_cast<double>(std::min(contexts, most / memory.window + 1));
  const double far = W * (W * below * (below - 1) / 2 + m * (n - below));
  return (local + far + rest * std::min(n * W, m)) / T;
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
    // A layer's are within 2^58: a length of 2^31 times 2^16 heads of 256 dimensions.
    const int64_t bytes = kept_keys(config, layer, length) * (key_bytes + gate_bytes);
    if (__builtin_add_overflow(cost.kv_cache_bytes, bytes, &cost.kv_cache_bytes)) {
      throw Error(
          fmt::format("model_cost: keys and values of {} tokens take more than {} bytes; expected "
                      "a shorter length or a smaller model",
                      length,
                      std::numeric_limits<int64_t>::max()));
    }
  }
  cost.weight_bytes = 4 * cost.parameters;
  cost.gradient_bytes = 4 * trained;
  cost.optimizer_bytes = 8 * trained;
  return cost;
}

}  // namespace reynard::models
