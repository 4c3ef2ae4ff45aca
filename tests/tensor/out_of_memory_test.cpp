#include "reynard/tensor/out_of_memory.h"

#include "reynard/tensor/error.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

namespace reynard::tensor {
namespace {

TEST(OutOfMemory, IsToldFromOtherErrors) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::length_error("vector")));
  EXPECT_FALSE(is_out_of_memory(Error("a mistake")));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("DefaultCPUAllocator")));
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {int64_t{1} << 50}, {int64_t{1} << 40, int64_t{1} << 40}}) {
    try {
      at::empty(sizes);
      FAIL() << "allocated";
    } catch (const std::exception& error) {
      EXPECT_TRUE(is_out_of_memory(error)) << error.what();
    }
  }
}

}  // namespace
}  // namespace reynard::tensor
