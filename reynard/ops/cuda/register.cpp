// Puts the row kernels of a GPU into the table of ops/rows.h while libreynard_cuda.so is loaded.

#include "reynard/ops/cuda/row_launch.h"
#include "reynard/ops/rows.h"

#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

namespace reynard::ops::cuda {

namespace {

// A launch as an entry of the table: rows are never split.
template <Element element, auto launch, class Task>
void run(const Task& task, int64_t begin, int64_t end) {
  TORCH_INTERNAL_ASSERT(begin == 0);
  if (end > 0) launch(task, element, end, c10::cuda::getCurrentCUDAStream());
}

template <Element element>
constexpr RowKernels kTable = {&run<element, &norm_forward, NormForward>,
                               &run<element, &norm_backward, NormBackward>,
                               &run<element, &shift_forward, ShiftForward>,
                               &run<element, &shift_backward, ShiftBackward>,
                               &run<element, &gate_forward, GateRows>,
                               &run<element, &gate_backward, GateRows>,
                               &run<element, &rotary, RotaryRows>,
                               &run<element, &softmax_loss, SoftmaxLossRows>,
                               &run<element, &adamw, AdamWTask>,
                               &run<element, &column_sums, ColumnSums>,
                               &run<element, &few_row_products, FewRowsTask>,
                               &run<element, &log_gate, LogGateRows>};

const bool registered = [] {
  register_gpu_row_kernels(kTable<Element::kF32>, kTable<Element::kBF16>);
  return true;
}();

}  // namespace

}  // namespace reynard::ops::cuda
