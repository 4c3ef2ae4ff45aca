#pragma once
// Products of bf16 matrices of many rows on a CPU with instructions for bf16, vectors or tiles:
// factors in any of both layouts, results in bf16 or, not rounded, in f32. The bits
// do not depend on the number of threads. product.h chooses between these and the library's.

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace reynard::ops {

// Whether a b can be formed here: dtype, device, this machine's path, and enough work.
bool has_block_product(const at::Tensor& a, const at::Tensor& b);

struct Factors {
  at::Tensor a;  // (M, K)
  at::Tensor b;  // (K, N)
};

// c = the sum of all a b, added to c where `add` is set; a c of bf16 is rounded once.
struct BlockSum {
  std::vector<Factors> terms;  // bf16, each with a block product
  at::Tensor c;                // (M, N) f32 or bf16 with contiguous rows
  bool add = false;
};

// All of them together: a right factor that several have is packed once, and threads wait for each
// other at the end only.
void block_products(std::span<const BlockSum> sums);

}  // namespace reynard::ops
