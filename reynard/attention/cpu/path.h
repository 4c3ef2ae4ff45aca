#pragma once
// Which kernels this machine runs: the best path that CPU and system support, or the one that the
// environment variable REYNARD_CPU_PATH names, and logged.

#include "reynard/attention/cpu/kernels.h"

#include <string_view>
#include <vector>

namespace reynard::attention::cpu {

// One way of computing: kernels for f32 (which f16 uses too) and for bf16 input.
struct Path {
  std::string_view name;  // amx, avx512_bf16, avx512, avx2 or portable
  const KernelTable* f32 = nullptr;
  const KernelTable* bf16 = nullptr;

  const KernelTable& kernels(Element element) const {
    return element == Element::kBFloat16 ? *bf16 : *f32;
  }
};

// What this machine supports, best first; portable is always there.
const std::vector<Path>& available_paths();

// The path in use. Throws reynard::Error listing what this machine has if REYNARD_CPU_PATH names
// anything else.
Path current_path();

// The path of that name, as current_path() would choose it.
Path find_path(std::string_view name);

}  // namespace reynard::attention::cpu
