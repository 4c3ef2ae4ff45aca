#include "reynard/process/resident_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace reynard::process {
namespace {

TEST(ResidentMemory, PeakOutlivesWhatIsGivenBack) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  { const std::vector<char> block(kBytes, 'x'); }
  // Half of it: Linux counts pages in batches.
  EXPECT_GE(peak_resident_bytes(), before + static_cast<int64_t>(kBytes / 2));
}

// Mapped by itself: a sanitizer's allocator keeps what is freed.
TEST(ResidentMemory, ForgettingBeginsAtWhatIsHeldNow) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  void* const block =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 'x', kBytes);
  ::munmap(block, kBytes);
  const int64_t peak = peak_resident_bytes();
  if (!forget_peak_resident_bytes()) GTEST_SKIP() << "this system does not forget";
  EXPECT_LT(peak_resident_bytes(), peak);
}

}  // namespace
}  // namespace reynard::process
