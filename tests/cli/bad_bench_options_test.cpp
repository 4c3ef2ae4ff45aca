// Options that `reynard bench` cannot measure with.

#include "reynard/tensor/device.h"
#include "tests/cli/bad_input.h"
#include "tests/support/errors.h"

namespace {

using namespace reynard;
using test::BadInput;

TEST_F(BadInput, WhatCannotBeUsedOrWrittenIsSaidBeforeAnythingIsMeasured) {
  EXPECT_EQ(missing(error_of({"bench", "decode", "--shape", "B2 H8 T64 D64"}), "B is 2"), "");
  EXPECT_EQ(missing(error_of({"bench", "knn", "--json", "none/rows.json"}), "none/"), "");
  // The second dtype is looked at before rows of the first are measured.
  EXPECT_EQ(missing(error_of({"bench", "attention", "--shape", "T64", "--dtype", "f32,f16"}),
                    "--dtype: f16 not in {f32,bf16}"),
            "");
  EXPECT_EQ(missing(error_of({"bench", "knn", "--keys", "200", "--dtype", "f32,f16"}),
                    "--dtype: f16 not in {f32,bf16}"),
            "");
}

TEST_F(BadInput, OptionsOfTheOtherDeviceAreRejectedWhereverTheBenchRuns) {
  const bool gpu = tensor::choose_device("auto").is_cuda();
  const std::vector<std::string> other =
      gpu ? std::vector<std::string>{"--shape", "H1"} : std::vector<std::string>{"--peers"};
  std::vector<std::string> command = {"bench", "attention", "--device", "auto"};
  command.insert(command.end(), other.begin(), other.end());
  EXPECT_EQ(missing(error_of(command), other[0] + " is an option of --device "), "");
}

TEST_F(BadInput, EveryBenchOfADeviceSaysWhyThereIsNoGpu) {
  const std::string reason = test::error_of([] { tensor::choose_device("cuda"); });
  if (reason == "no error") GTEST_SKIP() << "there is a GPU";
  for (const char* bench : {"attention",
                            "attention_memory",
                            "decode",
                            "forgetting_curve",
                            "knn",
                            "serve",
                            "start",
                            "train_step"}) {
    EXPECT_EQ(error_of({"bench", bench, "--device", "cuda"}), reason + "\n") << bench;
  }
  EXPECT_EQ(missing(error_of({"bench", "decode", "--device", "gpu"}), "--device: gpu"), "");
}

TEST_F(BadInput, OptionsOfDecodeAndSearchOnTheCpuAreRejectedOnAGpu) {
  const std::vector<std::vector<std::string>> options = {{"decode", "--chunk", "64"},
                                                         {"decode", "--dtype", "f32"},
                                                         {"decode", "--only", "decode"},
                                                         {"knn", "--dtype", "f32"},
                                                         {"knn", "--only", "knn_memory"}};
  for (const std::vector<std::string>& option : options) {
    std::vector<std::string> command = {"bench"};
    command.insert(command.end(), option.begin(), option.end());
    command.insert(command.end(), {"--device", "cuda"});
    EXPECT_EQ(missing(error_of(command), option[1] + " is an option of --device cpu"), "");
  }
}

TEST_F(BadInput, ShapesThatAGpuIsNotMeasuredWithAreErrors) {
  const auto decode = [&](const char* shape) {
    return error_of({"bench", "decode", "--device", "cuda", "--shape", shape});
  };
  EXPECT_EQ(missing(decode("T100"), "T of --shape = 100; expected a multiple of 64 on a GPU"), "");
  EXPECT_EQ(missing(decode("D320"), "D of --shape = 320; expected at most 256"), "");
  EXPECT_EQ(missing(decode("B2 T64"), "B is 2"), "");
  EXPECT_EQ(missing(error_of({"bench", "knn", "--device", "cuda", "--k", "301"}),
                    "--k = 301; expected 1 ... 300"),
            "");
}

TEST_F(BadInput, StepsTooShortToLearnFromAreNotMeasured) {
  EXPECT_EQ(missing(error_of({"bench", "train_step", "--length", "1"}),
                    "--length = 1; expected >= 16 with --batch 4"),
            "");
}

}  // namespace
