#include "bench/peak_growth.h"

#include "reynard/process/resident_memory.h"
#include "reynard/tensor/device.h"
#include "reynard/tensor/error.h"

#include <malloc.h>

namespace reynard::bench {

PeakGrowth::PeakGrowth(at::Device device) : device_(device) {
  ::malloc_trim(0);                       // what nothing uses goes back to the system
  tensor::reset_peak_gpu_memory(device);  // to what is held now
  if (device.is_cpu() && !process::forget_peak_resident_bytes()) {
    throw Error("bench: the peak of memory cannot be set anew (/proc/self/clear_refs)");
  }
  before_ = device.is_cpu() ? process::resident_bytes() : peak();
}

int64_t PeakGrowth::peak() const {
  return device_.is_cpu() ? process::peak_resident_bytes() : tensor::peak_gpu_memory_bytes(device_);
}

double PeakGrowth::bytes() const {
  return static_cast<double>(peak() - before_);
}

}  // namespace reynard::bench
