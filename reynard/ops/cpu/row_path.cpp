#include "reynard/ops/cpu/row_path.h"

#include "reynard/tensor/cpu_features.h"

#include <cstdlib>
#include <string_view>

namespace reynard::ops::cpu {

namespace {

template <class Table>
const Table& chosen(const Table& avx512, const Table& avx2, const Table& portable) {
  const char* set = std::getenv("REYNARD_CPU_PATH");
  const std::string_view forced = set ? set : "";
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  if (forced == "portable" || !cpu.avx2) return portable;
  if (forced == "avx2" || !cpu.avx512) return avx2;
  return avx512;
}

}  // namespace

std::vector<std::string> available_row_paths() {
  std::vector<std::string> paths;
  if (tensor::cpu_features().avx512) paths.emplace_back("avx512");
  if (tensor::cpu_features().avx2) paths.emplace_back("avx2");
  paths.emplace_back("portable");
  return paths;
}

const RowKernels& row_kernels(Element element) {
  return chosen(
      row_kernels_avx512(element), row_kernels_avx2(element), row_kernels_portable(element));
}

const ProductKernels& product_kernels() {
  return chosen(product_kernels_avx512(), product_kernels_avx2(), product_kernels_portable());
}

}  // namespace reynard::ops::cpu
