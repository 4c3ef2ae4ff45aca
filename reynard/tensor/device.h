#pragma once
// Which device a program runs on: the CPU or the first NVIDIA GPU that CUDA_VISIBLE_DEVICES leaves.
// Asking whether there is a GPU loads nothing but its driver.

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace reynard::tensor {

// "cpu", "cuda" (one GPU) or "auto" (a GPU where there is one and this build can use it, else the
// CPU). Opens libreynard_cuda.so when the answer is a GPU; ask before the first backward pass, when
// libtorch looks for its CUDA part for the only time. Throws reynard::Error for another word,
// and for "cuda" where there is no GPU, an older one than Ampere, or no CUDA part in the build,
// saying which.
at::Device choose_device(std::string_view name);

// NVIDIA GPUs that this process may use; 0 without a driver.
int num_gpus();

// The processor's model, "Intel(R) Xeon(R) Platinum 8481C"; "unknown" where Linux does not say it.
std::string cpu_name();
// "NVIDIA H100 80GB HBM3"; empty for the CPU.
std::string gpu_name(at::Device device);

// Largest memory that tensors have taken on a GPU since reset_peak_gpu_memory(), in bytes; 0 for
// the CPU.
int64_t peak_gpu_memory_bytes(at::Device device);
void reset_peak_gpu_memory(at::Device device);

// Memory of a GPU that nobody uses now, in bytes; 0 for the CPU.
int64_t free_gpu_memory_bytes(at::Device device);

}  // namespace reynard::tensor
