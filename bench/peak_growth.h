#pragma once
// The most memory that was taken on a device beyond what was held at some moment: resident memory
// of this process, or what tensors take on a GPU.

#include <c10/core/Device.h>

#include <cstdint>

namespace reynard::bench {

class PeakGrowth {
 public:
  // From here on: what was freed goes back to the system, and the system forgets its peak. Throws
  // reynard::Error where it cannot.
  explicit PeakGrowth(at::Device device);

  double bytes() const;

 private:
  int64_t peak() const;

  at::Device device_;
  int64_t before_;
};

}  // namespace reynard::bench
