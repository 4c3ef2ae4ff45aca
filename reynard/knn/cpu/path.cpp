#include "reynard/knn/cpu/path.h"

#include "reynard/tensor/cpu_features.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace reynard::knn::cpu {

namespace {

struct Path {
  std::string name;
  ScanTables tables;
};

const std::vector<Path>& paths() {
  static const std::vector<Path> found = [] {
    const tensor::CpuFeatures& cpu = tensor::cpu_features();
    std::vector<Path> all;
    if (cpu.amx_int8) all.push_back({"amx", amx_scan()});
    if (cpu.avx512_bf16) all.push_back({"avx512_bf16", avx512_bf16_scan()});
    if (cpu.avx512) all.push_back({"avx512", avx512_scan()});
    // A processor may have vpdpbusd with or without vdpbf16ps.
    for (Path& path : all) {
      path.tables.codes = cpu.avx512_vnni ? avx512_vnni_codes() : avx2_codes();
    }
    if (cpu.avx2) {
      all.push_back({"avx2", avx2_scan()});
      all.back().tables.codes = avx2_codes();
    }
    all.push_back({"portable", portable_scan()});
    return all;
  }();
  return found;
}

}  // namespace

std::vector<std::string> available_paths() {
  std::vector<std::string> names;
  for (const Path& path : paths()) names.push_back(path.name);
  return names;
}

const ScanTables& scan_tables() {
  const std::string& forced = tensor::forced_cpu_path();
  for (const Path& path : paths()) {
    if (forced.empty() || path.name == forced) return path.tables;
  }
  throw Error(
      fmt::format("knn: REYNARD_CPU_PATH = {}; expected one of {} on this machine, or unset",
                  forced,
                  fmt::join(available_paths(), ", ")));
}

}  // namespace reynard::knn::cpu
