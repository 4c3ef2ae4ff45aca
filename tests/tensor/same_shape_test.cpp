#include "reynard/tensor/same_shape.h"

#include "reynard/tensor/error.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>

namespace reynard::tensor {
namespace {

TEST(CheckSameShape, NamesBothArgumentsAndTheirShapes) {
  const at::Tensor x = at::zeros({2, 5});
  const auto message_for = [&](const at::Tensor& gate) -> std::string {
    try {
      check_same_shape("gate_mul", "gate", gate, "x", x);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message_for(at::zeros({2, 5})), "");
  EXPECT_EQ(message_for(at::zeros({2, 4})),
            "gate_mul: gate has shape [2, 4]; expected that of x, [2, 5]");
  EXPECT_EQ(message_for({}), "gate_mul: gate is undefined; expected that of x, [2, 5]");
}

}  // namespace
}  // namespace reynard::tensor
