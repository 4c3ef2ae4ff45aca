#include "reynard/tensor/row_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace reynard::tensor {
namespace {

char* bytes_of(const at::Tensor& t) {
  return static_cast<char*>(t.mutable_data_ptr());
}

TEST(EmptyRows, IsWhatTheLibraryMakes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {}, {0}, {3, 0}, {1}, {1, 768}, {2, 12, 64}, {1, 16385}, {5, 70001}}) {
      const at::Tensor expected = at::empty(sizes, dtype), t = empty_rows(sizes, dtype);
      EXPECT_EQ(t.sizes(), expected.sizes());
      EXPECT_EQ(t.strides(), expected.strides());
      EXPECT_EQ(t.scalar_type(), dtype);
      EXPECT_EQ(t.nbytes(), expected.nbytes());
      EXPECT_EQ(t.key_set(), expected.key_set());
      if (t.numel() > 0) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data_ptr()) % 64, 0U);
        std::memset(t.data_ptr(), 1, t.nbytes());
      }
    }
  }
}

TEST(EmptyRows, TensorsThatLiveTogetherShareNothing) {
  std::vector<at::Tensor> all;
  for (int round = 0; round < 3; ++round) {
    for (int64_t bytes = 1; bytes < 40000; bytes = bytes * 3 / 2 + 1) {
      all.push_back(empty_rows({bytes}, at::kByte));
      std::memset(bytes_of(all.back()), static_cast<int>(all.size()), bytes);
    }
    for (size_t i = 0; i < all.size(); i += 3) {  // again from blocks that were given back
      all[i] = empty_rows({all[i].numel()}, at::kByte);
      std::memset(bytes_of(all[i]), static_cast<int>(i + 1), all[i].numel());
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto value = static_cast<char>(i + 1);
    for (int64_t n = 0; n < all[i].numel(); ++n) ASSERT_EQ(bytes_of(all[i])[n], value);
  }
}

TEST(EmptyRows, CanBeFreedByAnotherThreadAndAfterTheirOwn) {
  at::Tensor survivor;
  std::thread([&] {
    survivor = empty_rows({100}, at::kFloat);
    survivor.fill_(7);
    for (int i = 0; i < 100; ++i) empty_rows({i}, at::kFloat);
  }).join();
  EXPECT_TRUE((survivor == 7).all().item<bool>());
  std::thread([&] { survivor = at::Tensor(); }).join();
  const at::Tensor next = empty_rows({100}, at::kFloat);
  next.fill_(8);
  EXPECT_TRUE((next == 8).all().item<bool>());
}

// A list that never ends would hold all blocks of a burst.
TEST(EmptyRows, ManyTensorsAreGivenBack) {
  for (int round = 0; round < 2; ++round) {
    std::vector<at::Tensor> burst;
    for (int i = 0; i < 1000; ++i) burst.push_back(empty_rows({1, 768}, at::kFloat).fill_(i));
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(burst[i][0][767].item<float>(), i);
  }
}

}  // namespace
}  // namespace reynard::tensor
