#include "bench/attention.h"

#include "bench/peak_growth.h"
#include "reynard/attention/attention.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace reynard::bench {

namespace {

constexpr int64_t kQueryHeads = 4, kGroups = 2, kDim = 64;
constexpr int64_t kPadding = 1000, kDocument = 6000;

double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const at::Tensor& x : tensors) bytes += static_cast<double>(x.nbytes());
  return bytes;
}

// Left padding, then documents of equal length; padding sees nothing.
at::Tensor packed_first_key(int64_t T) {
  at::Tensor first_key = at::empty({1, T}, at::TensorOptions().dtype(at::kInt));
  auto* to = first_key.data_ptr<int32_t>();
  for (int64_t i = 0; i < T; ++i) {
    const int64_t document = i < kPadding ? 0 : (i - kPadding) / kDocument * kDocument;
    to[i] = static_cast<int32_t>(kPadding + document);
  }
  return first_key;
}

struct MeasuredPass {
  PeakGrowth growth;               // since before there were inputs
  std::vector<at::Tensor> inputs;  // with gradients
  at::Tensor out, dout;
  std::vector<at::Tensor> gradients;

  explicit MeasuredPass(at::Device device) : growth(device) {}

  void differentiate() { gradients = torch::autograd::grad({out}, inputs, {dout}); }
  // Peak memory over that of the tensors.
  double overhead() const {
    return growth.bytes() / (bytes_of(inputs) + bytes_of({out, dout}) + bytes_of(gradients));
  }
};

at::Tensor normal(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::randn(sizes, options.dtype(at::kFloat)).to(options.dtype());
}

at::Tensor leaf(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return normal(sizes, options).set_requires_grad(true);
}

double peer_overhead(int64_t T, const at::TensorOptions& options) {
  MeasuredPass pass(options.device());
  pass.inputs = {leaf({1, kQueryHeads, T, kDim}, options),
                 leaf({1, kGroups, T, kDim}, options),
                 leaf({1, kGroups, T, kDim}, options)};
  pass.dout = normal({1, kQueryHeads, T, kDim}, options);
  pass.out = at::scaled_dot_product_attention(
      pass.inputs[0], pass.inputs[1], pass.inputs[2], {}, 0, true, std::nullopt, true);
  pass.differentiate();
  return pass.overhead();
}

double own_overhead(int64_t T, const at::TensorOptions& options) {
  MeasuredPass pass(options.device());
  const at::Tensor log_gate =
      at::log_sigmoid(normal({1, T, kQueryHeads}, options.dtype(at::kFloat)) + 8)
          .detach()
          .set_requires_grad(true);
  pass.inputs = {leaf({1, T, kQueryHeads, kDim}, options),
                 leaf({1, T, kGroups, kDim}, options),
                 leaf({1, T, kGroups, kDim}, options),
                 log_gate};
  pass.dout = normal({1, T, kQueryHeads, kDim}, options);
  pass.out = attention::attention(pass.inputs[0],
                                  pass.inputs[1],
                                  pass.inputs[2],
                                  log_gate,
                                  packed_first_key(T).to(options.device()),
                                  {},
                                  {})
                 .out;
  pass.differentiate();
  return pass.overhead();
}

}  // namespace

Rows bench_attention_memory(const AttentionMemoryBench& options) {
  constexpr int64_t kShortest = 4 * kPadding, kPeerLength = 8192;
  const int64_t T = options.T;
  tensor::check_value(
      T >= kShortest, "bench attention_memory", "--length", T, fmt::format(">= {}", kShortest));
  const at::Device device = tensor::choose_device(options.device);
  const std::string dtype =
      !options.dtype.empty() ? options.dtype : std::string(device.is_cpu() ? "f32" : "bf16");
  const at::TensorOptions tensors = at::TensorOptions().dtype(scalar_type(dtype)).device(device);
  // Threads and libraries are in memory before anything is measured.
  own_overhead(kShortest, tensors);
  const double peer = peer_overhead(std::min(T, kPeerLength), tensors);
  const double ours = own_overhead(T, tensors);
  return {{"attention_memory",
           fmt::format("B1 H{} G{} T{} D{}", kQueryHeads, kGroups, T, kDim),
           dtype,
           device_name(device),
           ours,
           "torch_sdpa",
           peer,
           "x tensors",
           peer / ours}};
}

}  // namespace reynard::bench
