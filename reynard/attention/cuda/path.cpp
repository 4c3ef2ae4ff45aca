#include "reynard/attention/cuda/path.h"

#include "reynard/tensor/check.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Logging.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace reynard::attention::cuda {

namespace {

// wgmma is Hopper's alone; the instructions of kSm80 stay.
Path best_path() {
  return at::cuda::getCurrentDeviceProperties()->major == 9 ? Path::kSm90 : Path::kSm80;
}

Path chosen_path() {
  const Path best = best_path();
  const char* wanted = std::getenv("REYNARD_CUDA_PATH");
  if (!wanted) return best;
  std::string names;
  for (const Path path : {Path::kSimt, Path::kSm80, Path::kSm90}) {
    if (path > best) break;
    if (name_of(path) == wanted) return path;
    names += (names.empty() ? "" : ", ") + std::string(name_of(path));
  }
  tensor::fail("attention", "REYNARD_CUDA_PATH", wanted, "what this GPU can run: " + names);
}

}  // namespace

std::string_view name_of(Path path) {
  switch (path) {
    case Path::kSm90:
      return "sm90";
    case Path::kSm80:
      return "sm80";
    case Path::kSimt:
      return "simt";
  }
  return {};
}

Path current_path() {
  static std::mutex mutex;
  static std::map<int, Path> of_devices;
  const std::lock_guard lock(mutex);
  const int device = c10::cuda::current_device();
  const auto known = of_devices.find(device);
  if (known != of_devices.end()) return known->second;
  const Path chosen = chosen_path();
  LOG(INFO) << "attention: CUDA path " << name_of(chosen) << " on "
            << at::cuda::getCurrentDeviceProperties()->name;
  return of_devices[device] = chosen;
}

int num_processors() {
  return at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
}

}  // namespace reynard::attention::cuda
