// The exponential of the kernels on each instruction set that this machine has: its stated error,
// and where it must be exact.

#include "reynard/attention/cpu/vector.h"
#include "reynard/tensor/cpu_features.h"
#include "tests/attention/cpu/exp2_lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace reynard::attention::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Exp2Path {
  std::string name;
  Exp2Lanes exp2;
  double rounding;  // what each step adds where multiply-add rounds twice
  bool saturates;
  std::vector<int> degrees;
};

std::vector<Exp2Path> exp2_paths() {
  std::vector<Exp2Path> paths = {{"portable", exp2_portable, 6e-8, false, {5, 6}}};
  if (tensor::cpu_features().avx2) paths.push_back({"avx2", exp2_avx2, 0, false, {5, 6}});
  if (tensor::cpu_features().avx512) {
    paths.push_back({"avx512", exp2_avx512, 0, true, {2, 5, 6}});
  }
  return paths;
}

class Exp2 : public testing::TestWithParam<Exp2Path> {
 protected:
  static std::vector<float> of(std::vector<float> x, int degree) {
    const size_t count = x.size();
    x.resize((count + 15) / 16 * 16);
    std::vector<float> y(x.size());
    GetParam().exp2(x.data(), y.data(), static_cast<int64_t>(x.size()), degree);
    y.resize(count);
    return y;
  }
  static float of(float x, int degree) { return of(std::vector<float>{x}, degree)[0]; }

  static double largest_relative_error(int degree) {
    std::vector<float> x;
    for (float at = -125.9f; at < 127; at += 0x1p-8f + 0x1p-14f) x.push_back(at);
    for (float at = -1; at <= 1; at += 0x1p-16f) x.push_back(at);
    const std::vector<float> y = of(x, degree);
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp2(static_cast<double>(x[i]));
      largest = std::max(largest, std::abs(y[i] - exact) / exact);
    }
    return largest;
  }
};

INSTANTIATE_TEST_SUITE_P(Lanes, Exp2, testing::ValuesIn(exp2_paths()), [](const auto& info) {
  return info.param.name;
});

TEST_P(Exp2, StaysWithinItsStatedError) {
  const std::map<int, double> stated = {{2, 5.5e-7}, {5, 1.7e-7}, {6, 8e-8}};
  for (const int degree : GetParam().degrees) {
    EXPECT_LT(largest_relative_error(degree), stated.at(degree) + GetParam().rounding) << degree;
  }
}

TEST_P(Exp2, IsExactWhereMasksAndOpenGatesNeedIt) {
  for (const int degree : GetParam().degrees) {
    EXPECT_EQ(of(0.0f, degree), 1.0f);
    EXPECT_EQ(of(-0.0f, degree), 1.0f);
    EXPECT_EQ(of(-127.0f, degree), 0.0f);
    EXPECT_EQ(of(-1e6f, degree), 0.0f);
    EXPECT_EQ(of(-kInf, degree), 0.0f);
    EXPECT_TRUE(std::isnan(of(std::numeric_limits<float>::quiet_NaN(), degree)));
    for (int n = -126; n <= 127; ++n) {
      EXPECT_EQ(of(static_cast<float>(n), degree), std::exp2(static_cast<float>(n)));
    }
  }
}

// Whatever its sign and its other bits are: a key with one must not become one that weighs nothing.
TEST_P(Exp2, KeepsEveryNaN) {
  const std::vector<uint32_t> all = {0x7fc00000,
                                     0x7fc00001,
                                     0x7fc000ff,
                                     0x7fc001ff,
                                     0x7fffffff,
                                     0x7f800001,
                                     0xffc00000,
                                     0xffffffff};
  for (const int degree : GetParam().degrees) {
    for (const uint32_t bits : all) {
      EXPECT_TRUE(std::isnan(of(std::bit_cast<float>(bits), degree))) << std::hex << bits;
    }
  }
}

// Weights that are too large are found by their sum, which must not be small by accident.
TEST_P(Exp2, IsLargeWhereTheArgumentIs) {
  const std::vector<float> too_large = {128, 129.5f, 1e4f, kInf};
  for (const int degree : GetParam().degrees) {
    for (const float x : too_large) {
      EXPECT_EQ(of(GetParam().saturates ? x : 127.0f, degree),
                GetParam().saturates ? kInf : 0x1p127f);
    }
  }
}

TEST(Conversion, OfBFloat16RoundsToNearestEvenAndKeepsNaN) {
  const auto bits = [](float x) {
    BFloat16 out{};
    from_float(x, out);
    return out.bits;
  };
  EXPECT_EQ(bits(1.0f), 0x3f80);
  EXPECT_EQ(bits(1.0f + 0x1p-8f), 0x3f80);             // half way, even is below
  EXPECT_EQ(bits(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // just above half way
  EXPECT_EQ(bits(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(to_float(BFloat16{bits(std::numeric_limits<float>::quiet_NaN())})));
}

}  // namespace
}  // namespace reynard::attention::cpu
