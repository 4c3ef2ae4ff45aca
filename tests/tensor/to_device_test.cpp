#include "reynard/tensor/to_device.h"

#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace reynard::tensor {
namespace {

TEST(ToDevice, MovesTensorsOfAllKindsTogether) {
  const std::array<at::Tensor, 5> expected = {at::arange(21, at::kInt).view({3, 7}),
                                              at::arange(1, at::kLong),
                                              at::empty({0, 4}, at::kFloat),
                                              at::arange(5, at::kByte),
                                              at::arange(6, at::kDouble).view({2, 3})};
  std::array<at::Tensor, 5> moved = expected;
  std::array<at::Tensor*, 5> all{};
  for (size_t i = 0; i < moved.size(); ++i) all[i] = &moved[i];
  to_device_together(all, test::test_device());
  for (size_t i = 0; i < moved.size(); ++i) {
    EXPECT_EQ(moved[i].device().type(), test::test_device().type());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(moved[i].const_data_ptr()) % 16, 0U);
    EXPECT_EQ(moved[i].scalar_type(), expected[i].scalar_type());
    EXPECT_BITWISE_EQUAL(moved[i].cpu(), expected[i]);
  }
}

TEST(ToDevice, LeavesTheCallerItsMemory) {
  const at::Tensor host = at::arange(1000, at::kInt);
  at::Tensor moved = host;
  at::Tensor* const all[] = {&moved};
  to_device_together(all, test::test_device());
  host.fill_(-1);
  EXPECT_BITWISE_EQUAL(moved.cpu(), at::arange(1000, at::kInt));
}

}  // namespace
}  // namespace reynard::tensor
