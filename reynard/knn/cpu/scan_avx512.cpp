#include "reynard/knn/cpu/scan_kernels.inl"

namespace reynard::knn::cpu {

ScanTables avx512_scan() {
  return make_tables();
}

}  // namespace reynard::knn::cpu
