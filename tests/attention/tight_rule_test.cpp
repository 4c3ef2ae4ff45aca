// The starts that the tight rule finds, against the rule applied key by key in f64.

#include "reynard/attention/bias.h"
#include "reynard/attention/log_mass.h"
#include "reynard/attention/pruning.h"
#include "tests/support/attention_inputs.h"

#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include <algorithm>

namespace reynard::attention {
namespace {

using test::AttentionInputs;
using test::AttentionShape;
using test::first_keys;
using test::random_inputs;

// The first key block of query block m of the one row whose mass, with all before it, is more than
// exp(limit) of some query's floor: key by key, in f64.
int64_t first_block_of(const at::Tensor& sums,    // (T)
                       const at::Tensor& floors,  // (T)
                       const at::Tensor& first,   // (T) i32
                       double bound,
                       int64_t m,
                       double limit) {
  const auto* c = sums.const_data_ptr<double>();
  const auto* floor = floors.const_data_ptr<double>();
  const auto* first_key = first.const_data_ptr<int32_t>();
  const int64_t begin = m * kQueryBlock, end = std::min(begin + kQueryBlock, sums.size(0));
  const int64_t last = (end - 1) / kKeyBlock;
  double mass = kNoMass;
  int64_t n = first_key[begin] / kKeyBlock;
  for (; n < last; ++n) {
    for (int64_t j = n * kKeyBlock; j < (n + 1) * kKeyBlock; ++j) {
      mass = log_add_exp(mass, bound - c[j]);
    }
    for (int64_t i = begin; i < end; ++i) {
      if (first_key[i] < (n + 1) * kKeyBlock && mass + c[i] - floor[i] > limit) return n;
    }
  }
  return n;
}

TEST(Pruning, StartsAreThoseOfTheTightRuleKeyByKey) {
  struct Case {
    double gate_mean, tolerance, floor;
  };
  constexpr int64_t kLength = 4500;
  constexpr double kBound = 1.5, kRounding = 5e-3;
  const AttentionShape shape = {.B = 1, .Tq = kLength, .Tk = kLength, .H = 2, .G = 2, .D = 16};
  for (const test::Visibility& visibility :
       {test::Visibility{}, test::Visibility{.documents = {900, 901, 2500}, .window = 2000}}) {
    // Of the last one all blocks weigh about the same, and many of them together reach the limit.
    for (const Case& of : {Case{0, -10, 0}, {4, -10, 0}, {5, -10, 0}, {7, -1, 9.5}}) {
      const AttentionInputs in = random_inputs(shape, at::kFloat, 5, of.gate_mean);
      const at::Tensor first = first_keys(shape, visibility), sums = gate_sums(in.log_gate);
      const at::Tensor floors =
          in.q.slice(3, 0, 1).squeeze(3).transpose(1, 2).to(at::kDouble) * 0.2 + of.floor;
      // The first queries of the last document: where there are others, these keep no keys of them.
      floors.slice(2, 2500, 2560).sub_(30);
      const at::Tensor bound = at::full({2}, kBound, in.q.options().dtype(at::kFloat));
      const KeyPart part = {in.k, in.v, sums, first, true};
      const at::Tensor starts =
          pruned_starts(in.q, sums, {&part, 1}, bound, {0, of.tolerance}, {.rows = floors})[0]
              .cpu();
      int64_t pruned = 0;
      for (int64_t h = 0; h < 2; ++h) {
        const at::Tensor c = sums[0][h].cpu(), floor = floors[0][h].contiguous().cpu();
        for (int64_t m = 0; m < starts.size(2); ++m) {
          const auto block_at = [&](double limit) {
            return first_block_of(c, floor, first[0].cpu(), kBound, m, limit);
          };
          const int64_t block = starts[0][h][m].item<int32_t>() / kKeyBlock;
          const double limit = of.tolerance - kFloorMargin;
          EXPECT_GE(block, block_at(limit - kRounding)) << of.gate_mean << " " << m;
          EXPECT_LE(block, block_at(limit + kRounding)) << of.gate_mean << " " << m;
          pruned += block - first[0][m * kQueryBlock].item<int32_t>() / kKeyBlock;
        }
      }
      EXPECT_GT(pruned, 10) << of.gate_mean;
    }
  }
}

}  // namespace
}  // namespace reynard::attention
