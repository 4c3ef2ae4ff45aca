#include "reynard/ops/cpu/row_kernels.h"

#include "reynard/tensor/cpu_features.h"

namespace reynard::ops::cpu {

const RowKernels& row_kernels(Element element) {
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  return cpu.avx512 ? row_kernels_avx512(element)
         : cpu.avx2 ? row_kernels_avx2(element)
                    : row_kernels_baseline(element);
}

}  // namespace reynard::ops::cpu
