#include "reynard/evaluation/freed_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

namespace reynard::evaluation {
namespace {

int64_t resident_memory() {
  std::ifstream in("/proc/self/statm");
  int64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

constexpr size_t kBytes = 4 << 20;

// Bytes that go back when every second of 32 blocks is freed.
int64_t returned_by_half() {
  std::vector<std::unique_ptr<char[]>> blocks(32);
  for (auto& block : blocks) {
    block = std::make_unique<char[]>(kBytes);
    std::memset(block.get(), 1, kBytes);
  }
  const int64_t before = resident_memory();
  for (size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
  return before - resident_memory();
}

TEST(FreedMemory, GoesBackThoughItsNeighboursStay) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer has a heap of its own";
#endif
  return_freed_memory();
  // What other tests left in the heap is given out first; never written to, these take nothing.
  std::vector<std::unique_ptr<char[]>> fillers(256);
  for (auto& filler : fillers) filler.reset(new char[kBytes]);
  // The first round would raise the C library's limit.
  for (int round = 0; round < 2; ++round) EXPECT_GT(returned_by_half(), 50 << 20) << round;
}

}  // namespace
}  // namespace reynard::evaluation
