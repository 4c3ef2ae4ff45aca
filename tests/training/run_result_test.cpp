#include "reynard/training/run_result.h"

#include "tests/support/files.h"

#include <gtest/gtest.h>

namespace reynard::training {
namespace {

TEST(RunResult, IsThereOnceItIsWrittenUntilItIsRemoved) {
  const test::TempDir folder;
  EXPECT_FALSE(finished_result(folder.path()));
  remove_result(folder.path());  // nothing
  RunResult result{.finished = true,
                   .steps = 7,
                   .tokens = 448,
                   .skipped_steps = 1,
                   .seconds = 2.5,
                   .loss = 3.25,
                   .validation_loss = 3.5,
                   .text = "abc",
                   .held_out_text = "def"};
  write_result(folder.path(), result);
  const auto found = finished_result(folder.path());
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->finished);
  EXPECT_EQ(found->steps, 7);
  EXPECT_EQ(found->tokens, 448);
  EXPECT_EQ(found->skipped_steps, 1);
  EXPECT_EQ(found->seconds, 2.5);
  EXPECT_EQ(found->loss, 3.25);
  EXPECT_EQ(found->validation_loss, 3.5);
  EXPECT_EQ(found->text, "abc");
  EXPECT_EQ(found->held_out_text, "def");
  remove_result(folder.path());
  EXPECT_FALSE(finished_result(folder.path()));
}

TEST(RunResult, WhatIsNoResultIsNone) {
  const test::TempDir folder;
  for (const char* text : {"", "[1]", "{\"steps\": 1, \"tokens\": 2}", "{\"steps\": 1, \"to"}) {
    test::write_file(folder / "result.json", text);
    EXPECT_FALSE(finished_result(folder.path())) << text;
  }
}

}  // namespace
}  // namespace reynard::training
