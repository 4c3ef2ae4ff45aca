// The operator's benches with lengths that are shorter than what they usually measure.

#include "bench/attention.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

namespace reynard::bench {
namespace {

AttentionBench of_length(int64_t T) {
  AttentionBench options;
  options.pruned_shape = {.H = 2, .G = 1, .T = T, .D = 16};
  options.dense_shapes = {options.pruned_shape};
  options.repeats = 1;
  return options;
}

TEST(AttentionBench, MeasuresRowsOfFewTokens) {
  for (const int64_t T : {2, 63}) {
    EXPECT_EQ(bench_attention(of_length(T)).size(), 10U) << T;  // five rows in two dtypes
  }
}

TEST(AttentionBench, OneTokenHasNothingToCompare) {
  EXPECT_SAYS(test::error_of([] { bench_attention(of_length(1)); }),
              "bench attention: T of --shape = 1; expected at least 2");
}

// What a pass leaves in memory, or took before another began, is not taken for its own.
TEST(AttentionMemoryBench, NoPassTakesLessThanItsTensors) {
  const Rows rows = bench_attention_memory({.T = 4000});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_GE(rows[0].ours, 1);
  EXPECT_GE(rows[0].peer_value, 1);
}

}  // namespace
}  // namespace reynard::bench
