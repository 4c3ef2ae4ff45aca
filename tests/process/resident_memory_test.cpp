#include "reynard/process/resident_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
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

TEST(ResidentMemory, ForgettingBeginsAtWhatIsHeldNow) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  { const std::vector<char> block(kBytes, 'x'); }
  const int64_t peak = peak_resident_bytes();
  if (!forget_peak_resident_bytes()) GTEST_SKIP() << "this system does not forget";
  EXPECT_LT(peak_resident_bytes(), peak);
}

}  // namespace
}  // namespace reynard::process
