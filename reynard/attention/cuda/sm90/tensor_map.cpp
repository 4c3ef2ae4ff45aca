#include "reynard/attention/cuda/sm90/tensor_map.h"

#include <cuda_runtime_api.h>
#include <stdexcept>
#include <string>

namespace reynard::attention::cuda::sm90 {

namespace {

// The driver's function is asked for at run time: the library loads without libcuda.
using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (!found) throw std::runtime_error("CUDA: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const Operand& x, int B, int T, int heads, int D, int rows) {
  const auto bytes = [](int64_t stride) { return static_cast<cuuint64_t>(stride * 2); };
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(D),
                              static_cast<cuuint64_t>(T),
                              static_cast<cuuint64_t>(heads),
                              static_cast<cuuint64_t>(B)};
  const cuuint64_t strides[] = {bytes(x.time), bytes(x.head), bytes(x.batch)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUtensorMapDataType type = x.element == Element::kHalf ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUtensorMap map;
  const CUresult result = encode()(&map,
                                   type,
                                   4,
                                   x.data,
                                   sizes,
                                   strides,
                                   box,
                                   steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("CUDA: cuTensorMapEncodeTiled failed with " + std::to_string(result));
  }
  return map;
}

}  // namespace reynard::attention::cuda::sm90
