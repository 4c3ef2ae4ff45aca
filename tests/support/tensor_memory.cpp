#include "tests/support/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace reynard::test {

namespace {

struct Counter final : c10::MemoryReportingInfoBase {
  int64_t held = 0, peak = 0;

  void reportMemoryUsage(void* /*data*/,
                         int64_t bytes,
                         size_t /*total_allocated*/,
                         size_t /*total_reserved*/,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    held += bytes;  // negative when freed
    peak = std::max(peak, held);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

int64_t peak_tensor_bytes(const std::function<void()>& run) {
  const auto counter = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  run();
  return counter->peak;
}

}  // namespace reynard::test
