#pragma once
// Which instructions the kernels use: the best that the current GPU has, or what REYNARD_CUDA_PATH
// says.

#include <string_view>

namespace reynard::attention::cuda {

enum class Path : int {
  kSimt,  // f32 arithmetic on the ordinary cores: any GPU, any input
  kSm90,  // Hopper: wgmma and the copy engine; falls back to kSimt for what it does not take
};

std::string_view name_of(Path path);

// The path of the current device; logs its name once at level debug. Throws reynard::Error for an
// unknown name in REYNARD_CUDA_PATH or one that this GPU cannot run, listing those that it can.
Path current_path();

// Streaming multiprocessors of the current device.
int num_processors();

}  // namespace reynard::attention::cuda
