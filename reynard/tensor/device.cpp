#include "reynard/tensor/device.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/cuda.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <dlfcn.h>
#include <array>
#include <fstream>
#include <string>

namespace reynard::tensor {

namespace {

// The few functions of the driver that are called before (and without) the CUDA part. 0: success.
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_name)(char*, int, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

const Driver* driver() {
  static const Driver found = [] {
    Driver d;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return d;
    find(library, "cuInit", d.init);
    find(library, "cuDeviceGetCount", d.device_count);
    find(library, "cuDeviceGetName", d.device_name);
    find(library, "cuDeviceGetAttribute", d.attribute);
    return d;
  }();
  static const bool usable = found.init && found.device_count && found.device_name &&
                             found.attribute && found.init(0) == 0;
  return usable ? &found : nullptr;
}

// Of the first GPU; {0, 0} where it does not say.
struct ComputeCapability {
  int major = 0, minor = 0;
};
ComputeCapability compute_capability() {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  ComputeCapability found;
  if (driver()->attribute(&found.major, kMajor, 0) != 0) found.major = 0;
  if (driver()->attribute(&found.minor, kMinor, 0) != 0) found.minor = 0;
  return found;
}
constexpr int kAmpere = 8;  // the oldest that kernels are compiled for

c10::DeviceAllocator& allocator(at::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  return *at::getDeviceAllocator(device.type());
}

}  // namespace

int num_gpus() {
  int count = 0;
  if (!driver() || driver()->device_count(&count) != 0) return 0;
  return count;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string gpu_name(at::Device device) {
  std::array<char, 128> name = {};
  if (!device.is_cuda() || !driver()) return "";
  const int failed =
      driver()->device_name(name.data(), static_cast<int>(name.size()) - 1, device.index());
  return failed ? "" : name.data();
}

at::Device choose_device(std::string_view name) {
  check_value(name == "cpu" || name == "cuda" || name == "auto",
              "device",
              "--device",
              name,
              "cpu, cuda or auto");
  if (name == "cpu") return at::kCPU;
  const int gpus = num_gpus();
  const ComputeCapability capability = gpus > 0 ? compute_capability() : ComputeCapability();
  const bool is_supported = capability.major >= kAmpere;
  if (name == "auto" && (!is_supported || !cuda_available())) return at::kCPU;
  if (gpus == 0) {
    throw Error(
        "--device cuda: there is no NVIDIA GPU (or no driver, or CUDA_VISIBLE_DEVICES hides it); "
        "use --device cpu or auto");
  }
  if (!is_supported) {
    throw Error("--device cuda: " + gpu_name({at::kCUDA, 0}) + " has compute capability " +
                std::to_string(capability.major) + "." + std::to_string(capability.minor) +
                "; the kernels need 8.0 (Ampere) or later; use --device cpu or auto");
  }
  open_cuda_library();  // says what is missing
  return {at::kCUDA, 0};
}

int64_t peak_gpu_memory_bytes(at::Device device) {
  if (!device.is_cuda()) return 0;
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator(device).getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

void reset_peak_gpu_memory(at::Device device) {
  if (device.is_cuda()) allocator(device).resetPeakStats(device.index());
}

int64_t free_gpu_memory_bytes(at::Device device) {
  if (!device.is_cuda()) return 0;
  c10::DeviceAllocator& memory = allocator(device);
  memory.emptyCache();  // what this process holds without using it
  return static_cast<int64_t>(memory.getMemoryInfo(device.index()).first);
}

}  // namespace reynard::tensor
