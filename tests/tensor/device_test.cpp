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

bool is_old(const std::string& gpu) {
  return gpu == "Old GPU";  // old_gpu_driver.cpp
}

TEST(CpuName, IsTheModelAsLinuxHasIt) {
  const std::string name = cpu_name();
  EXPECT_NE(name, "");
  EXPECT_EQ(name.find_first_of(":\t\n"), std::string::npos) << name;
  EXPECT_NE(name.front(), ' ');
}

TEST(ChooseDevice, AutoIsAGpuWhereThereIsOne) {
  const bool usable = num_gpus() > 0 && !is_old(gpu_name({at::kCUDA, 0})) && cuda_available();
  EXPECT_EQ(choose_device("auto").is_cuda(), usable);
}

TEST(ChooseDevice, SaysWhichGpuIsTooOld) {
  if (!is_old(gpu_name({at::kCUDA, 0}))) GTEST_SKIP() << "there is no old GPU";
  EXPECT_TRUE(choose_device("auto").is_cpu());
  try {
    choose_device("cuda");
    FAIL() << "chose a GPU without kernels";
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("Old GPU has compute capability 7.5; the kernels need 8.0"),
        std::string::npos)
        << error.what();
  }
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
