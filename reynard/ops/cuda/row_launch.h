#pragma once
// The row kernels of one GPU: launches of row_kernels.h over rows [0, rows), asynchronous on a
// stream. Results are the same bits in every run: no atomics, fixed order of all sums.

#include "reynard/ops/row_kernels.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::ops::cuda {

void norm_forward(const NormForward& task, Element element, int64_t rows, cudaStream_t stream);
// task.d_weight (ceil(rows / kBlockRows), groups * width): sums over each block of rows.
void norm_backward(const NormBackward& task, Element element, int64_t rows, cudaStream_t stream);
void shift_forward(const ShiftForward& task, Element element, int64_t rows, cudaStream_t stream);
void shift_backward(const ShiftBackward& task, Element element, int64_t rows, cudaStream_t stream);
void gate_forward(const GateRows& task, Element element, int64_t rows, cudaStream_t stream);
void gate_backward(const GateRows& task, Element element, int64_t rows, cudaStream_t stream);
void log_gate(const LogGateRows& task, Element element, int64_t rows, cudaStream_t stream);
void rotary(const RotaryRows& task, Element element, int64_t rows, cudaStream_t stream);
void softmax_loss(const SoftmaxLossRows& task, Element element, int64_t rows, cudaStream_t stream);
void adamw(const AdamWTask& task, Element element, int64_t elements, cudaStream_t stream);
// The bits of a token's results do not depend on the other tokens.
void few_row_products(const FewRowsTask& task,
                      Element element,
                      int64_t tokens,
                      cudaStream_t stream);
void column_sums(const ColumnSums& task, Element element, int64_t columns, cudaStream_t stream);

}  // namespace reynard::ops::cuda
