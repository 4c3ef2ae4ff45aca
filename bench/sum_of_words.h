#pragma once
// How fast memory can be read: what a kernel that only reads is compared with.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::bench {

// Reads all bytes of a contiguous tensor once, with all threads.
uint64_t sum_of_words(const at::Tensor& x);

}  // namespace reynard::bench
