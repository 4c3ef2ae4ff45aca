#include "reynard/tensor/device.h"

#include "reynard/tensor/cuda.h"
#include "reynard/tensor/error.h"

#include <gtest/gtest.h>

#include <string>

namespace reynard::tensor {

TEST(ChooseDevice, TheCpuIsAlwaysThere) {
  EXPECT_TRUE(choose_device("cpu").is_cpu());
  EXPECT_EQ(gpu_name(at::kCPU), "");
  EXPECT_EQ(peak_gpu_memory_bytes(at::kCPU), 0);
}

TEST(ChooseDevice, AutoIsAGpuWhereThereIsOne) {
  const bool usable = num_gpus() > 0 && cuda_available();
  EXPECT_EQ(choose_device("auto").is_cuda(), usable);
}

TEST(ChooseDevice, SaysWhatIsMissingForCuda) {
  if (num_gpus() > 0) GTEST_SKIP() << "there is a GPU";
  try {
    choose_device("cuda");
    FAIL() << "chose a GPU that is not there";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--device cuda: there is no NVIDIA GPU"),
              std::string::npos)
        << error.what();
  }
}

TEST(ChooseDevice, RejectsOtherWords) {
  EXPECT_THROW(choose_device("gpu"), Error);
  EXPECT_THROW(choose_device(""), Error);
}

}  // namespace reynard::tensor
