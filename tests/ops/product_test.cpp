// Products of bf16 by the library, which a CPU without instructions for them forms in f32.

#include "reynard/ops/product.h"
#include "reynard/tensor/cpu_features.h"
#include "tests/support/compare.h"
#include "tests/support/forced_path.h"
#include "tests/support/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

namespace reynard::ops {
namespace {

using test::random_normal;

bool multiplies_bf16() {
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  return cpu.avx512_bf16 || cpu.amx_bf16;
}

// On a path without block products, so that all are the library's.
class LibraryProducts : public testing::Test {
 protected:
  const test::ForcedPath path_{"portable"};
  const at::Tensor a_ = random_normal({35, 300}, 1).to(at::kBFloat16);
  const at::Tensor b_ = random_normal({70, 300}, 2).to(at::kBFloat16).t();
  const at::Tensor wide_ = at::mm(a_.to(at::kFloat), b_.to(at::kFloat));
  const at::Tensor exact_ = at::mm(a_.to(at::kDouble), b_.to(at::kDouble));
};

TEST_F(LibraryProducts, AreWithinBudget) {
  EXPECT_WITHIN_BUDGET(product(a_, b_), wide_.to(at::kBFloat16), exact_);
  const at::Tensor naive = multiplies_bf16() ? wide_.to(at::kBFloat16).to(at::kFloat) : wide_;
  EXPECT_WITHIN_BUDGET(product(a_, b_, at::kFloat), naive, exact_);
}

// More columns than are widened at a time.
TEST_F(LibraryProducts, OfF32AreNotRoundedWhereAsked) {
  const at::Tensor b = random_normal({1100, 300}, 2).to(at::kBFloat16).t();
  const at::Tensor y = unrounded_product(a_, b);
  ASSERT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_WITHIN_BUDGET(y,
                       at::mm(a_.to(at::kFloat), b.to(at::kFloat)),
                       at::mm(a_.to(at::kDouble), b.to(at::kDouble)));
}

TEST_F(LibraryProducts, AddedAreWithinBudget) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor sum = random_normal({35, 70}, 3).to(dtype);
    const at::Tensor before = sum.clone();
    add_product(sum, a_, b_);
    const at::Tensor term = multiplies_bf16() ? wide_.to(at::kBFloat16).to(at::kFloat) : wide_;
    EXPECT_WITHIN_BUDGET(
        sum, (before.to(at::kFloat) + term).to(dtype), before.to(at::kDouble) + exact_)
        << dtype;
  }
}

}  // namespace
}  // namespace reynard::ops
