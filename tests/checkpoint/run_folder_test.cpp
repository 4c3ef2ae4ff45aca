#include "reynard/checkpoint/run_folder.h"

#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace reynard::checkpoint {
namespace {

namespace fs = std::filesystem;

TEST(RunFolder, CheckpointsAreListedByTheirSteps) {
  const test::TempDir run;
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
  std::vector<fs::path> expected;
  for (const int64_t steps : {0, 9, 10, 123456789}) {
    expected.push_back(checkpoint_folder(run.path(), steps));
  }
  EXPECT_EQ(expected[2], run / "checkpoints/step-000000000010");
  for (std::size_t i : {2, 0, 3, 1}) fs::create_directories(expected[i]);
  EXPECT_EQ(list_checkpoints(run.path()), expected);
}

TEST(RunFolder, TheRunHasTheFoldersName) {
  EXPECT_EQ(run_name("runs/fox"), "fox");
  EXPECT_EQ(run_name("runs/fox/"), "fox");
  EXPECT_EQ(run_name("runs/fox/../wolf"), "wolf");
  EXPECT_EQ(run_name("."), fs::current_path().filename());
}

TEST(RunFolder, WhatHasAnotherNameIsNoCheckpoint) {
  const test::TempDir run;
  for (const char* name : {".tmp-step-000000000009-7.0",
                           ".tmp-removed-step-000000000009",
                           "step-000000000009.bak",
                           "step-00000000000x",
                           "step-9",
                           "best"}) {
    fs::create_directories(run / "checkpoints" / name);
  }
  test::write_file(run / "checkpoints/step-000000000009", "a file");
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
}

}  // namespace
}  // namespace reynard::checkpoint
