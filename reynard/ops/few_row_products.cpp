#include "reynard/ops/few_row_products.h"

#include "reynard/ops/cpu/row_path.h"
#include "reynard/ops/product_kernels.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace reynard::ops {

namespace {

// Of a weight, per task: long enough for sequential reads, short enough to keep threads equal.
constexpr int64_t kTaskBytes = 128 << 10;
// Below this one thread is done before another one is awake.
constexpr int64_t kSerialBytes = 128 << 10;

struct Task {
  ProductLoop loop;
  ProductRows rows;
  int64_t begin, end;  // of the weight's rows
};

// Null: there is none.
ProductLoop loop_for(at::ScalarType x, at::ScalarType weight) {
  const ProductKernels& kernels = cpu::product_kernels();
  if (x == at::kFloat) return weight == at::kFloat ? kernels.f32_by_f32 : nullptr;
  if (x != at::kBFloat16) return nullptr;
  switch (weight) {
    case at::kFloat:
      return kernels.bf16_by_f32;
    case at::kBFloat16:
      return kernels.bf16_by_bf16;
    case at::kChar:
      return kernels.bf16_by_int8;
    default:
      return nullptr;
  }
}

}  // namespace

bool has_few_row_product(const at::Tensor& x, const RowWeight& weight) {
  const bool int8 = weight.values.scalar_type() == at::kChar;
  return x.size(0) <= kFewRows && x.is_cpu() && weight.values.is_cpu() &&
         weight.values.is_contiguous() && int8 == weight.scales.defined() &&
         loop_for(x.scalar_type(), weight.values.scalar_type()) != nullptr;
}

std::vector<at::Tensor> few_row_products(const at::Tensor& x, std::span<const RowWeight> weights) {
  const at::Tensor input = x.contiguous();
  const int64_t N = x.size(0), I = x.size(1);
  std::vector<at::Tensor> results;
  std::vector<Task> tasks;
  int64_t total_bytes = 0;
  for (const RowWeight& weight : weights) {
    TORCH_INTERNAL_ASSERT(has_few_row_product(x, weight) && weight.values.size(1) == I);
    const int64_t O = weight.values.size(0);
    const bool wide = weight.values.scalar_type() == at::kFloat;
    results.push_back(at::empty({N, O}, wide ? at::kFloat : at::kBFloat16));
    const ProductRows rows{
        .x = input.const_data_ptr(),
        .weight = weight.values.const_data_ptr(),
        .scales = weight.scales.defined() ? weight.scales.const_data_ptr<float>() : nullptr,
        .tokens = N,
        .rows = O,
        .width = I,
        .y = results.back().data_ptr()};
    const int64_t row_bytes = std::max<int64_t>(1, I * weight.values.element_size());
    const int64_t rows_per_task = std::max<int64_t>(4, kTaskBytes / row_bytes / 4 * 4);
    const ProductLoop loop = loop_for(x.scalar_type(), weight.values.scalar_type());
    for (int64_t begin = 0; begin < O; begin += rows_per_task) {
      tasks.push_back({loop, rows, begin, std::min(O, begin + rows_per_task)});
    }
    total_bytes += O * row_bytes;
  }
  const auto run = [&](int64_t task, int64_t /*worker*/) {
    const Task& t = tasks[task];
    t.loop(t.rows, t.begin, t.end);
  };
  const auto num_tasks = static_cast<int64_t>(tasks.size());
  if (total_bytes <= kSerialBytes) {
    for (int64_t task = 0; task < num_tasks; ++task) run(task, 0);
  } else {
    tensor::run_tasks(num_tasks, run);
  }
  return results;
}

}  // namespace reynard::ops
