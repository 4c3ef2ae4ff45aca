#include "reynard/tensor/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

namespace reynard::tensor {

namespace {

// AMX state is large, so Linux hands it out per process and on request (x86 arch_prctl).
bool request_tile_registers() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24, kAmxInt8 = 1U << 25;

// The processor's AMX bits (CPUID leaf 7, EDX); 0 where tiles may not be used.
unsigned amx_bits() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  return (d & kAmxTile) && request_tile_registers() ? d : 0;
}

CpuFeatures detect() {
  CpuFeatures found;
  found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  found.avx512 = found.avx2 && __builtin_cpu_supports("avx512f") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl");
  found.avx512_vnni = found.avx512 && __builtin_cpu_supports("avx512vnni");
  found.avx512_bf16 = found.avx512 && __builtin_cpu_supports("avx512bf16");
  const unsigned amx = found.avx512_bf16 ? amx_bits() : 0;
  found.amx_bf16 = (amx & kAmxBf16) != 0;
  found.amx_int8 = found.amx_bf16 && (amx & kAmxInt8) != 0;
  found.few_lines_to_first_level = __builtin_cpu_is("intel") || __builtin_cpu_is("amdfam19h");
  return found;
}

std::string& forced_path() {
  static std::string name = [] {
    const char* const set = std::getenv("REYNARD_CPU_PATH");
    return std::string(set ? set : "");
  }();
  return name;
}

}  // namespace

const std::string& forced_cpu_path() {
  return forced_path();
}

void force_cpu_path(const std::string& name) {
  forced_path() = name;
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace reynard::tensor
