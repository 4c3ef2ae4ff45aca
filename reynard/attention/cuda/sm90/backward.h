#pragma once
// The backward on Hopper: bf16 and f16, head dimensions up to 256 that are multiples of 8. The same
// bits in every run.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

bool takes_backward(const BackwardTask& task);

// Bytes of scratch, to be aligned to 256.
int64_t backward_scratch_bytes(const Problem& problem);
void backward(const BackwardTask& task, void* scratch, int num_processors, cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm90
