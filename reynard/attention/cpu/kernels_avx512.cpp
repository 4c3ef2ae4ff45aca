#include "reynard/attention/cpu/kernel_table.h"
#include "reynard/attention/cpu/tiles_f32.h"

namespace reynard::attention::cpu {

const KernelTable& avx512_kernels() {
  static const KernelTable table = make_kernel_table<TilesF32>();
  return table;
}

}  // namespace reynard::attention::cpu
