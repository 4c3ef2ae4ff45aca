#include "bench/attention.h"

#include "reynard/attention/attention.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/resident_memory.h"

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
  std::vector<at::Tensor> inputs;  // with gradients
  at::Tensor out, dout;
  std::vector<at::Tensor> gradients;
};

// Peak memory of a pass over that of its tensors; `before` is the memory in use without it.
double overhead(const MeasuredPass& pass, double before) {
  const double tensors =
      bytes_of(pass.inputs) + bytes_of({pass.out, pass.dout}) + bytes_of(pass.gradients);
  return (static_cast<double>(tensor::peak_resident_bytes()) - before) / tensors;
}

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes).to(dtype).set_requires_grad(true);
}

void differentiate(MeasuredPass& pass) {
  pass.gradients = torch::autograd::grad({pass.out}, pass.inputs, {pass.dout});
}

double peer_overhead(int64_t T, at::ScalarType dtype) {
  const auto before = static_cast<double>(tensor::resident_bytes());
  MeasuredPass pass;
  pass.inputs = {leaf({1, kQueryHeads, T, kDim}, dtype),
                 leaf({1, kGroups, T, kDim}, dtype),
                 leaf({1, kGroups, T, kDim}, dtype)};
  pass.dout = at::randn({1, kQueryHeads, T, kDim}).to(dtype);
  pass.out = at::scaled_dot_product_attention(
      pass.inputs[0], pass.inputs[1], pass.inputs[2], {}, 0, true, std::nullopt, true);
  differentiate(pass);
  return overhead(pass, before);
}

double own_overhead(int64_t T, at::ScalarType dtype) {
  const auto before = static_cast<double>(tensor::resident_bytes());
  MeasuredPass pass;
  const at::Tensor log_gate =
      at::log_sigmoid(at::randn({1, T, kQueryHeads}) + 8).detach().set_requires_grad(true);
  pass.inputs = {leaf({1, T, kQueryHeads, kDim}, dtype),
                 leaf({1, T, kGroups, kDim}, dtype),
                 leaf({1, T, kGroups, kDim}, dtype),
                 log_gate};
  pass.dout = at::randn({1, T, kQueryHeads, kDim}).to(dtype);
  pass.out =
      attention::attention(
          pass.inputs[0], pass.inputs[1], pass.inputs[2], log_gate, packed_first_key(T), {}, {})
          .out;
  differentiate(pass);
  return overhead(pass, before);
}

}  // namespace

Rows bench_attention_memory(int64_t T, const std::string& dtype) {
  constexpr int64_t kShortest = 4 * kPadding, kPeerLength = 8192;
  tensor::check_value(
      T >= kShortest, "bench attention_memory", "--length", T, fmt::format(">= {}", kShortest));
  const at::ScalarType type = dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  // Threads and libraries are in memory before anything is measured; the larger pass comes last,
  // because the peak that the system records only grows.
  own_overhead(kShortest, type);
  const double peer = peer_overhead(std::min(T, kPeerLength), type);
  const double ours = own_overhead(T, type);
  return {{"attention_memory",
           fmt::format("B1 H{} G{} T{} D{}", kQueryHeads, kGroups, T, kDim),
           dtype,
           cpu_name(),
           ours,
           "torch_sdpa",
           peer,
           "x tensors",
           peer / ours}};
}

}  // namespace reynard::bench
