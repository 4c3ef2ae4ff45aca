#pragma once
// A call of the operator as the kernels see it: plain pointers, and the arrays that they point
// into.

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/part_kernels.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reynard::attention::cpu {

struct PreparedProblem {
  Problem problem;
  const KernelTable* kernels = nullptr;
  at::Tensor query_sums, key_sums, first_key, start;
  std::vector<KeyRange> ranges;  // (B, H, N)
  int64_t num_query_blocks = 0;  // N
  int64_t num_key_blocks = 0;
};

PreparedProblem prepare(const PartArguments& arguments);

// (B, H, Tq) f32 for q (B, Tq, H, D)
at::Tensor empty_lse(const at::Tensor& q);

}  // namespace reynard::attention::cpu
