#include "reynard/tensor/check.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace reynard::tensor {
namespace {

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CheckShape, AcceptsNamedAndFreeDimensions) {
  const at::Tensor k = at::zeros({2, 5, 3, 64});
  EXPECT_NO_THROW(check_shape("attention", "k", k, {{"B", 2}, {"Tk"}, {"G"}, {"D", 64}}));
}

TEST(CheckShape, NamesOperationArgumentAndBothShapes) {
  const at::Tensor k = at::zeros({2, 5, 3, 64});
  EXPECT_EQ(message_of([&] {
              check_shape("attention", "k", k, {{"B", 4}, {"Tk"}, {"G"}, {"D", 64}});
            }),
            "attention: k has shape [2, 5, 3, 64]; expected [B = 4, Tk, G, D = 64]");
  EXPECT_EQ(message_of([&] {
              check_shape("attention", "k", k, {{"B"}, {"Tk"}});
            }),
            "attention: k has shape [2, 5, 3, 64]; expected [B, Tk]");
  EXPECT_EQ(message_of([&] { check_shape("attention", "k", {}, {{"B"}}); }),
            "attention: k is undefined; expected [B]");
}

TEST(CheckSameShape, NamesBothArgumentsAndTheirShapes) {
  const at::Tensor x = at::zeros({2, 5});
  const auto message_for = [&](const at::Tensor& gate) {
    return message_of([&] { check_same_shape("gate_mul", "gate", gate, "x", x); });
  };
  EXPECT_EQ(message_for(at::zeros({2, 5})), "");
  EXPECT_EQ(message_for(at::zeros({2, 4})),
            "gate_mul: gate has shape [2, 4]; expected that of x, [2, 5]");
  EXPECT_EQ(message_for({}), "gate_mul: gate is undefined; expected that of x, [2, 5]");
}

TEST(CheckDtype, ListsWhatIsAllowed) {
  EXPECT_EQ(message_of([&] {
              check_dtype("attention", "q", at::zeros({1}, at::kLong), {at::kFloat, at::kBFloat16});
            }),
            "attention: q has dtype Long; expected one of Float, BFloat16");
}

TEST(CheckValue, NamesTheValueAndTheRequirement) {
  EXPECT_EQ(message_of([] { check_value(false, "rotary", "base", int64_t{-1}, "> 0"); }),
            "rotary: base = -1; expected > 0");
}

}  // namespace
}  // namespace reynard::tensor
