#include "reynard/ops/few_row_products.h"

#include "reynard/ops/cpu/row_path.h"
#include "reynard/ops/product_kernels.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/parallel.h"
#include "reynard/tensor/row_tensor.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace reynard::ops {

namespace {

// Of a weight, per task: long enough for sequential reads, short enough to keep threads equal,
// which small weights need more tasks for.
constexpr int64_t kTaskBytes = 128 << 10, kLeastTaskBytes = 32 << 10, kEqualTasks = 16;
constexpr int64_t kRowsAtOnce = 32;  // the most that a loop takes together
// Below this one thread is done before another one is awake.
constexpr int64_t kSerialBytes = 128 << 10;

// A weight's rows in tasks of equally many.
struct RowTasks {
  ProductLoop loop;
  ProductRows rows;
  int64_t rows_per_task;
  int64_t end;  // of its tasks among those of all weights

  void run(int64_t task_from_end) const {
    const int64_t tasks = (rows.rows + rows_per_task - 1) / rows_per_task;
    const int64_t begin = (tasks - task_from_end) * rows_per_task;
    loop(rows, begin, std::min(rows.rows, begin + rows_per_task));
  }
};

// Null: there is none.
ProductLoop loop_for(const ProductKernels& kernels, at::ScalarType x, at::ScalarType weight) {
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

at::ScalarType result_dtype(const RowWeight& weight) {
  const bool rounds = weight.rounds && weight.values.scalar_type() != at::kFloat;
  return rounds ? at::kBFloat16 : at::kFloat;
}

// x as the loops of these kernels want it; undefined: as it is.
at::Tensor packed_input(const ProductKernels& kernels,
                        const at::Tensor& x,
                        std::span<const RowWeight> weights) {
  const bool is_read = std::ranges::any_of(
      weights, [](const RowWeight& weight) { return weight.values.scalar_type() != at::kFloat; });
  if (!kernels.pack || !is_read) return {};
  const ProductRows rows{.x = x.const_data_ptr(), .tokens = x.size(0), .width = x.size(1)};
  const at::Tensor packed = at::empty({kernels.packed_bytes(rows.tokens, rows.width)}, at::kByte);
  kernels.pack(rows, packed.mutable_data_ptr());
  return packed;
}

// Rows of x beyond which tiles of the matrix unit are better than reading w again for every tile of
// tokens.
constexpr int64_t kMostGpuRows = 512;

// Whether a GPU's kernel takes these dtypes and this memory.
bool has_gpu_kernel(const at::Tensor& x, const at::Tensor& w) {
  const auto is_read_in_packs = [](const at::Tensor& t) {
    return t.is_contiguous() && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  };
  const at::ScalarType dtype = w.scalar_type();
  return x.is_cuda() && w.is_cuda() && x.numel() > 0 && w.numel() > 0 && has_row_kernels(x) &&
         (dtype == at::kFloat || (dtype == at::kBFloat16 && dtype == x.scalar_type())) &&
         x.size(1) % 8 == 0 && is_read_in_packs(x) && is_read_in_packs(w);
}

std::vector<at::Tensor> products_on_gpu(const at::Tensor& x, std::span<const RowWeight> weights) {
  const c10::DeviceGuard device(x.device());
  const FewRowsTask empty = {.x = x.const_data_ptr(),
                             .tokens = static_cast<int>(x.size(0)),
                             .width = static_cast<int>(x.size(1)),
                             .weights = {}};
  FewRowsTask task = empty;
  std::vector<at::Tensor> results;
  for (const RowWeight& weight : weights) {
    if (task.num_weights == FewRowsTask::kMostWeights) {
      row_kernels(x).few_row_products(task, 0, x.size(0));
      task = empty;
    }
    const at::Tensor& w = weight.values;
    TORCH_INTERNAL_ASSERT(has_gpu_kernel(x, w) && w.size(1) == x.size(1));
    results.push_back(at::empty({x.size(0), w.size(0)}, x.options().dtype(result_dtype(weight))));
    task.weights[task.num_weights++] = {.values = w.const_data_ptr(),
                                        .is_f32 = w.scalar_type() == at::kFloat,
                                        .y_is_f32 = result_dtype(weight) == at::kFloat,
                                        .rows = static_cast<int>(w.size(0)),
                                        .y = results.back().mutable_data_ptr()};
  }
  row_kernels(x).few_row_products(task, 0, x.size(0));
  return results;
}

}  // namespace

bool has_few_row_product(const at::Tensor& x, const RowWeight& weight) {
  if (x.is_cuda()) {
    return x.size(0) <= kFewGpuRows && !weight.scales.defined() && has_gpu_kernel(x, weight.values);
  }
  const bool int8 = weight.values.scalar_type() == at::kChar;
  return x.size(0) <= kFewRows && x.numel() > 0 && x.is_cpu() && weight.values.is_cpu() &&
         weight.values.is_contiguous() && int8 == weight.scales.defined() &&
         loop_for(cpu::product_kernels(), x.scalar_type(), weight.values.scalar_type()) != nullptr;
}

std::vector<at::Tensor> few_row_products(const at::Tensor& x, std::span<const RowWeight> weights) {
  if (x.is_cuda()) return products_on_gpu(x, weights);
  const ProductKernels& kernels = cpu::product_kernels();
  const at::Tensor input = x.contiguous(), packed = packed_input(kernels, input, weights);
  const int64_t N = x.size(0), I = x.size(1);
  std::vector<at::Tensor> results;
  std::vector<RowTasks> parts;
  results.reserve(weights.size());
  parts.reserve(weights.size());
  int64_t num_tasks = 0;
  int64_t total_bytes = 0;
  for (const RowWeight& weight : weights) {
    total_bytes += weight.values.numel() * weight.values.element_size();
  }
  const int64_t num_equal = kEqualTasks * at::get_num_threads();
  const int64_t task_bytes = std::clamp(total_bytes / num_equal, kLeastTaskBytes, kTaskBytes);
  for (const RowWeight& weight : weights) {
    TORCH_INTERNAL_ASSERT(weight.values.size(1) == I);
    const int64_t O = weight.values.size(0);
    results.push_back(tensor::empty_rows({N, O}, result_dtype(weight)));
    const ProductRows rows{
        .x = input.const_data_ptr(),
        .packed = packed.defined() ? packed.const_data_ptr() : nullptr,
        .weight = weight.values.const_data_ptr(),
        .scales = weight.scales.defined() ? weight.scales.const_data_ptr<float>() : nullptr,
        .tokens = N,
        .rows = O,
        .width = I,
        .y_is_f32 = result_dtype(weight) == at::kFloat,
        .y = results.back().data_ptr()};
    const int64_t row_bytes = std::max<int64_t>(1, I * weight.values.element_size());
    const int64_t rows_per_task =
        std::max(kRowsAtOnce, task_bytes / row_bytes / kRowsAtOnce * kRowsAtOnce);
    const ProductLoop loop = loop_for(kernels, x.scalar_type(), weight.values.scalar_type());
    TORCH_INTERNAL_ASSERT(loop);
    num_tasks += (O + rows_per_task - 1) / rows_per_task;
    parts.push_back({loop, rows, rows_per_task, num_tasks});
  }
  const auto run = [&](int64_t task, int64_t /*worker*/) {
    const auto part = std::ranges::upper_bound(parts, task, {}, &RowTasks::end);
    part->run(part->end - task);
  };
  if (total_bytes <= kSerialBytes) {
    for (int64_t task = 0; task < num_tasks; ++task) run(task, 0);
  } else {
    tensor::run_tasks(num_tasks, run);
  }
  return results;
}

bool has_few_output_product(const at::Tensor& x, const at::Tensor& w) {
  if (x.is_cuda()) {
    return x.scalar_type() == at::kBFloat16 && w.scalar_type() == at::kFloat &&
           w.size(0) <= kFewRows && x.size(0) <= kMostGpuRows && has_gpu_kernel(x, w);
  }
  return x.is_cpu() && w.is_cpu() && x.scalar_type() == at::kBFloat16 &&
         w.scalar_type() == at::kFloat && w.size(0) <= kFewRows && w.is_contiguous();
}

at::Tensor few_output_product(const at::Tensor& x, const at::Tensor& w) {
  TORCH_INTERNAL_ASSERT(has_few_output_product(x, w) && x.size(1) == w.size(1));
  if (x.is_cuda()) {
    const RowWeight weight{.values = w, .scales = {}};
    return products_on_gpu(x, {&weight, 1})[0];
  }
  const at::Tensor input = x.contiguous();
  const at::Tensor y = at::empty({x.size(0), w.size(0)}, w.options());
  const ProductLoop loop = cpu::product_kernels().bf16_by_f32;
  for_rows(x, x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
    const ProductRows rows{.x = input.const_data_ptr<at::BFloat16>() + begin * x.size(1),
                           .weight = w.const_data_ptr(),
                           .tokens = end - begin,
                           .rows = w.size(0),
                           .width = w.size(1),
                           .y_is_f32 = true,
                           .y = y.mutable_data_ptr<float>() + begin * w.size(0)};
    loop(rows, 0, w.size(0));
  });
  return y;
}

}  // namespace reynard::ops
