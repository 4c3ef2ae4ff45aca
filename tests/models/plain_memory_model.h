#pragma once
// LongLLaMA's rule computed plainly in f64, all logits of all tokens at once: what the memory
// attention mixer is compared with.

#include "reynard/models/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace reynard::test {

// RoPE, softmax attention, or the two that a gate mixes, and a gated MLP only.
class PlainMemoryModel {
 public:
  explicit PlainMemoryModel(models::Decoder& decoder) : config_(decoder.config()) {
    decoder.parameters([&](const std::string& name, models::Parameter& parameter) {
      weights_.emplace(name, parameter.value.detach().to(at::kDouble));
    });
  }

  // tokens (T); windows: where each local context begins, ascending from 0 -> (T, C).
  at::Tensor hidden(const at::Tensor& tokens, const std::vector<int64_t>& windows) const {
    const at::Tensor begins = begins_of(tokens.size(0), windows);
    return norm(before_layer(config_.num_layers, tokens, begins), "model.norm.weight");
  }

  // The shares of attention of one layer (H, T queries, T keys).
  at::Tensor shares(int64_t layer,
                    const at::Tensor& tokens,
                    const std::vector<int64_t>& windows) const {
    const at::Tensor begins = begins_of(tokens.size(0), windows);
    return shares_of(normed(before_layer(layer, tokens, begins), layer), begins, layer);
  }

 private:
  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }

  static std::string prefix_of(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

  // The begin of every token's context (T) i64.
  static at::Tensor begins_of(int64_t T, const std::vector<int64_t>& windows) {
    std::vector<int64_t> begin(T);
    for (const int64_t window : windows) {
      for (int64_t t = window; t < T; ++t) begin[t] = window;
    }
    return at::tensor(begin, at::kLong);
  }

  // The residual that a layer reads (T, C).
  at::Tensor before_layer(int64_t end, const at::Tensor& tokens, const at::Tensor& begins) const {
    at::Tensor x = at::embedding(weight("model.embeddings.weight"), tokens);
    for (int64_t layer = 0; layer < end; ++layer) {
      const std::string prefix = prefix_of(layer);
      x = x + attention(normed(x, layer), begins, layer);
      const at::Tensor y = norm(x, prefix + "mlp_norm.weight");
      const at::Tensor inner = at::matmul(y, weight(prefix + "mlp.gate_proj.weight").t());
      const int64_t I = inner.size(1) / 2;
      x = x + at::matmul(at::silu(inner.narrow(1, 0, I)) * inner.narrow(1, I, I),
                         weight(prefix + "mlp.down_proj.weight").t());
    }
    return x;
  }

  // What the attention of a layer reads (T, C).
  at::Tensor normed(const at::Tensor& x, int64_t layer) const {
    return norm(x, prefix_of(layer) + "attn_norm.weight");
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return x * (x.pow(2).mean(-1, true) + config_.norm_eps).rsqrt() * weight(name);
  }

  // (T, heads, D) by the positions (T).
  at::Tensor rotated(const at::Tensor& x, const at::Tensor& positions) const {
    const int64_t half = x.size(2) / 2;
    const at::Tensor frequency =
        at::pow(config_.attention.rope_base, -at::arange(half, at::kDouble) / half);
    const at::Tensor angle = (positions.to(at::kDouble).unsqueeze(1) * frequency).unsqueeze(1);
    const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
    return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 2);
  }

  // (T, H, D); keys and values of a group for each of its heads.
  at::Tensor heads(const at::Tensor& x, int64_t layer, const char* name) const {
    const int64_t H = config_.attention.num_heads, D = config_.head_dim();
    const at::Tensor matrix = weight(prefix_of(layer) + "attn." + name);
    const at::Tensor all = at::matmul(x, matrix.t()).view({x.size(0), -1, D});
    return all.repeat_interleave(H / all.size(1), 1);
  }

  at::Tensor shares_of(const at::Tensor& x, const at::Tensor& begins, int64_t layer) const {
    const int64_t T = x.size(0), H = config_.attention.num_heads, D = config_.head_dim();
    const at::Tensor index = at::arange(T, at::kLong);
    const at::Tensor k = heads(x, layer, "k_proj.weight"),
                     q = rotated(heads(x, layer, "q_proj.weight"), index - begins);
    const auto products = [&](const at::Tensor& keys) {  // (H, T, T)
      return at::matmul(q.transpose(0, 1), keys.permute({1, 2, 0})) / std::sqrt(double(D));
    };
    const double hidden_logit = -std::numeric_limits<double>::infinity();
    const at::Tensor key = index.unsqueeze(0), query = index.unsqueeze(1);
    const at::Tensor local = key.ge(begins.unsqueeze(1)).logical_and(key.le(query));
    at::Tensor logits =
        products(rotated(k, index - begins)).masked_fill(local.logical_not(), hidden_logit);
    if (config_.is_memory_layer(layer)) {
      const at::Tensor remembered = key.lt(begins.unsqueeze(1)).expand({H, T, T});
      at::Tensor far = products(k).masked_fill(remembered.logical_not(), hidden_logit);
      if (config_.memory.top_k > 0) {
        const int64_t k_best = std::min(config_.memory.top_k, T);
        const at::Tensor least = std::get<0>(far.topk(k_best, -1)).select(-1, k_best - 1);
        far = far.masked_fill(far.lt(least.unsqueeze(-1)), hidden_logit);
      }
      if (config_.memory.merge == models::MemoryMerge::kGated) {
        const at::Tensor gate = weight(prefix_of(layer) + "attn.memory_gate").sigmoid();
        const at::Tensor share =  // of the memory: none where it is empty
            gate.view({H, 1, 1}) * begins.gt(0).view({1, T, 1});
        return at::nan_to_num(at::softmax(far, -1)) * share + at::softmax(logits, -1) * (1 - share);
      }
      logits = at::where(remembered, far, logits);
    }
    return at::softmax(logits, -1);
  }

  at::Tensor attention(const at::Tensor& x, const at::Tensor& begins, int64_t layer) const {
    const at::Tensor v = heads(x, layer, "v_proj.weight").transpose(0, 1);
    const at::Tensor out = at::matmul(shares_of(x, begins, layer), v);
    return at::matmul(out.transpose(0, 1).reshape({x.size(0), -1}),
                      weight(prefix_of(layer) + "attn.o_proj.weight").t());
  }

  models::DecoderConfig config_;
  std::map<std::string, at::Tensor> weights_;
};

}  // namespace reynard::test
