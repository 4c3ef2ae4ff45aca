#pragma once
// Which instructions the kernels use: the best that the current GPU has, or what REYNARD_CUDA_PATH
// says.

#include <string_view>

namespace reynard::attention::cuda {

// In rising order: a path falls back to the one before it for what it does not take.
enum class Path : int {
  kSimt,  // f32 arithmetic on the ordinary cores: any input
  kSm80,  // Ampere and later: the matrix instruction of a warp
  kSm90,  // Hopper: wgmma and the copy engine
};

std::string_view name_of(Path path);

// The path of the current device; logs its name once at level INFO. Throws reynard::Error for an
// unknown name in REYNARD_CUDA_PATH or one that this GPU cannot run, listing those that it can.
Path current_path();

// Streaming multiprocessors of the current device.
int num_processors();

}  // namespace reynard::attention::cuda
