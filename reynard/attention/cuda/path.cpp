#include "reynard/attention/cuda/path.h"

#include "reynard/tensor/check.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>

namespace reynard::attention::cuda {

namespace {

Path best_path() {
  return at::cuda::getCurrentDeviceProperties()->major == 9 ? Path::kSm90 : Path::kSimt;
}

Path chosen_path() {
  const Path best = best_path();
  const char* wanted = std::getenv("REYNARD_CUDA_PATH");
  if (!wanted) return best;
  for (const Path path : {Path::kSimt, best}) {
    if (name_of(path) == wanted) return path;
  }
  tensor::fail("attention",
               "REYNARD_CUDA_PATH",
               wanted,
               best == Path::kSm90 ? "simt or sm90" : "simt (this GPU is not a Hopper)");
}

}  // namespace

std::string_view name_of(Path path) {
  return path == Path::kSm90 ? "sm90" : "simt";
}

Path current_path() {
  static const Path path = [] {
    const Path chosen = chosen_path();
    spdlog::debug("attention on {} uses the path {}",
                  at::cuda::getCurrentDeviceProperties()->name,
                  name_of(chosen));
    return chosen;
  }();
  return path;
}

int num_processors() {
  return at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
}

}  // namespace reynard::attention::cuda
