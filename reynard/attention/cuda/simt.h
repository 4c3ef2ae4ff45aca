#pragma once
// Attention on the ordinary cores of a GPU, in f32 arithmetic: the path of f32 inputs and of
// shapes that the tensor-core paths do not take. Deterministic: the backward computes dq in one
// kernel and dk, dv in another, each sum by one block in a fixed order.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

namespace reynard::attention::cuda::simt {

void forward(const ForwardTask& task, cudaStream_t stream);
void backward(const BackwardTask& task, cudaStream_t stream);

}  // namespace reynard::attention::cuda::simt
