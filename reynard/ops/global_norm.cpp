#include "reynard/ops/global_norm.h"

#include "reynard/tensor/parallel.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace reynard::ops {

namespace {

constexpr int64_t kBlock = int64_t{1} << 16;  // elements of a task
constexpr int64_t kPart = 512;                // elements whose squares are summed in f32
constexpr int64_t kSums = 16;                 // side by side, which the compiler keeps in vectors

double sum_of_squares(const float* x, int64_t size) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += kPart) {
    const int64_t end = std::min(size, begin + kPart);
    float sums[kSums] = {};
    int64_t i = begin;
    for (; i + kSums <= end; i += kSums) {
      for (int64_t s = 0; s < kSums; ++s) sums[s] += x[i + s] * x[i + s];
    }
    for (; i < end; ++i) sums[0] += x[i] * x[i];
    for (const float sum : sums) total += sum;
  }
  return total;
}

struct Block {
  const float* data = nullptr;
  int64_t size = 0;
};

at::Tensor norm_on_cpu(std::span<const at::Tensor> tensors) {
  std::vector<at::Tensor> contiguous;
  std::vector<Block> blocks;
  for (const at::Tensor& tensor : tensors) {
    contiguous.push_back(tensor.to(at::kFloat).contiguous());
    const auto* data = contiguous.back().const_data_ptr<float>();
    const int64_t size = tensor.numel();
    for (int64_t i = 0; i < size; i += kBlock) {
      blocks.push_back({data + i, std::min(kBlock, size - i)});
    }
  }
  std::vector<double> sums(blocks.size());
  tensor::run_tasks(std::ssize(blocks), [&](int64_t task, int64_t /*worker*/) {
    sums[task] = sum_of_squares(blocks[task].data, blocks[task].size);
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return at::full({}, std::sqrt(total), at::kDouble);
}

}  // namespace

at::Tensor global_norm(std::span<const at::Tensor> tensors) {
  if (tensors.empty() || tensors[0].is_cpu()) return norm_on_cpu(tensors);
  const at::Tensor norms =
      at::stack(at::_foreach_norm(at::TensorList(tensors.data(), tensors.size()))).to(at::kDouble);
  return at::sqrt((norms * norms).sum());
}

}  // namespace reynard::ops
