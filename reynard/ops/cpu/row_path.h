#pragma once
// Which row loops this machine runs: the widest that it has, or those that the environment variable
// REYNARD_CPU_PATH names. With the path amx rows use the loops of avx512_bf16.

#include "reynard/ops/block_product_kernels.h"
#include "reynard/ops/product_kernels.h"
#include "reynard/ops/row_kernels.h"

#include <string>
#include <vector>

namespace reynard::ops::cpu {

// Names of the loops that this machine can run, best first: avx512_bf16, avx512, avx2, portable.
std::vector<std::string> available_row_paths();
// The same for products of few rows: amx too.
std::vector<std::string> available_product_paths();
// And for those of blocks: amx, avx512_bf16.
std::vector<std::string> available_block_product_paths();

// Asked at every call, so that tests may switch; attention reports names that nothing has.
const RowKernels& row_kernels(Element element);
const ProductKernels& product_kernels();
// Null where the library's products are used: without instructions for bf16.
const BlockProductKernels* block_product_kernels();

}  // namespace reynard::ops::cpu
