#pragma once
// What this machine's CPU and operating system let kernels use, asked once at run time.

#include <string>

namespace reynard::tensor {

struct CpuFeatures {
  bool avx2 = false;         // AVX2 and FMA
  bool avx512 = false;       // AVX-512 F, BW, DQ, VL
  bool avx512_vnni = false;  // vpdpbusd
  bool avx512_bf16 = false;  // vdpbf16ps
  bool amx_bf16 = false;     // tile products of bf16, and the kernel lets this process use them
  bool amx_int8 = false;     // the same with tile products of int8
  // Few lines on their way into the first-level cache of a core at once, more into the second
  // (Intel, AMD's family 19h; measured on a Xeon with AMX and on Zen 4): what is read much later is
  // better asked for there.
  bool few_lines_to_first_level = false;
};

// The first call asks Linux for permission to use the AMX tile registers.
const CpuFeatures& cpu_features();

// The instruction-set path that the environment variable REYNARD_CPU_PATH names; empty: the best
// one. The environment is asked once: a decoded token chooses kernels hundreds of times.
const std::string& forced_cpu_path();
// Another one from now on, or "" for the best. For tests, while nothing is computed.
void force_cpu_path(const std::string& name);

}  // namespace reynard::tensor
