#pragma once
// The forward on Hopper: bf16 and f16, head dimensions up to 256 that are multiples of 8.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

bool takes_forward(const ForwardTask& task);

// Bytes of scratch, to be aligned to 256.
int64_t forward_scratch_bytes(const Problem& problem);
void forward(const ForwardTask& task, void* scratch, int num_processors, cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm90
