#include "reynard/attention/cpu/path.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/cpu_features.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <mutex>
#include <string>

namespace reynard::attention::cpu {

const std::vector<Path>& available_paths() {
  static const std::vector<Path> found = [] {
    const tensor::CpuFeatures& cpu = tensor::cpu_features();
    std::vector<Path> paths;
    if (cpu.amx_bf16) paths.push_back({"amx", &avx512_kernels(), &amx_kernels()});
    if (cpu.avx512_bf16) {
      paths.push_back({"avx512_bf16", &avx512_kernels(), &avx512_bf16_kernels()});
    }
    if (cpu.avx512) paths.push_back({"avx512", &avx512_kernels(), &avx512_kernels()});
    if (cpu.avx2) paths.push_back({"avx2", &avx2_kernels(), &avx2_kernels()});
    paths.push_back({"portable", &portable_kernels(), &portable_kernels()});
    return paths;
  }();
  return found;
}

Path find_path(std::string_view name) {
  std::string names;
  for (const Path& path : available_paths()) {
    if (path.name == name) return path;
    names += (names.empty() ? "" : ", ") + std::string(path.name);
  }
  throw Error(
      fmt::format("attention: REYNARD_CPU_PATH = {}; expected one of {} on this machine, or unset",
                  name,
                  names));
}

Path current_path() {
  const std::string& forced = tensor::forced_cpu_path();
  const Path path = forced.empty() ? available_paths().front() : find_path(forced);
  static std::once_flag logged;
  std::call_once(logged, [&] { LOG(INFO) << "attention: CPU path " << path.name; });
  return path;
}

}  // namespace reynard::attention::cpu
