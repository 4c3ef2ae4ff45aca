#include "reynard/knn/cpu/scan_kernels.inl"

namespace reynard::knn::cpu {

ScanTables avx2_scan() {
  return make_tables();
}

}  // namespace reynard::knn::cpu
