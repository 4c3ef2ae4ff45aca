#include "reynard/ops/cpu/row_path.h"

#include "reynard/tensor/cpu_features.h"

#include <string>

namespace reynard::ops::cpu {

namespace {

template <class Table>
const Table& chosen(const Table& avx512, const Table& avx2, const Table& portable) {
  const std::string& forced = tensor::forced_cpu_path();
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  if (forced == "portable" || !cpu.avx2) return portable;
  if (forced == "avx2" || !cpu.avx512) return avx2;
  return avx512;
}

// Those of AVX-512, for tables that have none.
ProductKernels with_f32_loops(ProductKernels kernels) {
  kernels.f32_by_f32 = product_kernels_avx512().f32_by_f32;
  kernels.bf16_by_f32 = product_kernels_avx512().bf16_by_f32;
  return kernels;
}

BlockProductKernels with_panels(BlockProductKernels kernels) {
  kernels.pack_panel = block_product_kernels_avx512_bf16().pack_panel;
  return kernels;
}

}  // namespace

std::vector<std::string> available_row_paths() {
  std::vector<std::string> paths;
  if (tensor::cpu_features().avx512_bf16) paths.emplace_back("avx512_bf16");
  if (tensor::cpu_features().avx512) paths.emplace_back("avx512");
  if (tensor::cpu_features().avx2) paths.emplace_back("avx2");
  paths.emplace_back("portable");
  return paths;
}

const RowKernels& row_kernels(Element element) {
  const std::string& forced = tensor::forced_cpu_path();
  const bool wanted = forced.empty() || forced == "avx512_bf16" || forced == "amx";
  if (tensor::cpu_features().avx512_bf16 && wanted) return row_kernels_avx512_bf16(element);
  return chosen(
      row_kernels_avx512(element), row_kernels_avx2(element), row_kernels_portable(element));
}

std::vector<std::string> available_product_paths() {
  std::vector<std::string> paths = available_row_paths();
  if (tensor::cpu_features().amx_bf16) paths.insert(paths.begin(), "amx");
  return paths;
}

const ProductKernels& product_kernels() {
  static const ProductKernels amx = with_f32_loops(product_kernels_amx());
  static const ProductKernels avx512_bf16 = with_f32_loops(product_kernels_avx512_bf16());
  const std::string& forced = tensor::forced_cpu_path();
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  if (cpu.amx_bf16 && (forced.empty() || forced == "amx")) return amx;
  if (cpu.avx512_bf16 && (forced.empty() || forced == "avx512_bf16")) return avx512_bf16;
  return chosen(product_kernels_avx512(), product_kernels_avx2(), product_kernels_portable());
}

std::vector<std::string> available_block_product_paths() {
  std::vector<std::string> paths;
  if (tensor::cpu_features().amx_bf16) paths.emplace_back("amx");
  if (tensor::cpu_features().avx512_bf16) paths.emplace_back("avx512_bf16");
  return paths;
}

const BlockProductKernels* block_product_kernels() {
  static const BlockProductKernels amx = with_panels(block_product_kernels_amx());
  const std::string& forced = tensor::forced_cpu_path();
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  if (cpu.amx_bf16 && (forced.empty() || forced == "amx")) return &amx;
  const bool wanted = forced.empty() || forced == "avx512_bf16";
  return cpu.avx512_bf16 && wanted ? &block_product_kernels_avx512_bf16() : nullptr;
}

}  // namespace reynard::ops::cpu
