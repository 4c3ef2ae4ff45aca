#include "reynard/tensor/parallel.h"

#include "reynard/tensor/cpu_features.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace reynard::tensor {
namespace {

TEST(RunTasks, RunsEachTaskOnceOnAWorkerThatHasScratch) {
  constexpr int64_t kTasks = 1000;
  std::vector<std::atomic<int>> runs(kTasks);
  const int64_t workers = num_workers(kTasks);
  run_tasks(kTasks, [&](int64_t task, int64_t worker) {
    EXPECT_LT(worker, workers);
    ++runs[task];
  });
  for (const auto& count : runs) EXPECT_EQ(count, 1);
}

TEST(RunTasks, NestedCallsRunSeriallyAndNoTasksIsFine) {
  std::atomic<int> total{0};
  run_tasks(4, [&](int64_t, int64_t) {
    run_tasks(5, [&](int64_t, int64_t worker) {
      EXPECT_EQ(worker, 0);
      ++total;
    });
  });
  EXPECT_EQ(total, 20);
  run_tasks(0, [&](int64_t, int64_t) { FAIL(); });
}

TEST(CpuFeatures, EachIncludesTheOnesBelow) {
  const CpuFeatures& cpu = cpu_features();
  EXPECT_TRUE(!cpu.amx_bf16 || cpu.avx512_bf16);
  EXPECT_TRUE(!cpu.avx512_bf16 || cpu.avx512);
  EXPECT_TRUE(!cpu.avx512_vnni || cpu.avx512);
  EXPECT_TRUE(!cpu.avx512 || cpu.avx2);
}

}  // namespace
}  // namespace reynard::tensor
