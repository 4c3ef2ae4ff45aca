#pragma once
// The order in which the forward takes query blocks, sorted by falling cost: plain arithmetic,
// which the host can check.
//
// Where heads are pruned, those of costly heads, of which most is left, keep the matrix unit busy;
// those of the others are short and wait for memory. Taken side by side, each hides what the other
// waits for. The costly ones come in their order, the costliest first, with as many of the others
// between any two: since long tasks become shorter, they come faster towards the end, where the
// short tasks of both fill what long ones leave. Where the others take little time beside the
// costly ones all of them come behind: there is more to lose if long tasks begin late.
//
// Of the rows of a causal triangle each processor takes two that are as long together as those of
// any other. Where they are between two and three a processor, the third ones would only then
// begin, on some. These, the shortest of all, are taken behind the first ones instead, the shortest
// first, by the processors that are free first: what comes then, from the longest to the shortest,
// ends 4 to 7 % earlier.

#include "reynard/tensor/host_device.h"

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

struct QueryBlockOrder {
  int costly, others;  // query blocks
  int key_blocks;      // of 128 keys that the costliest one reads at most
  int processors;
  int64_t cost;  // key blocks that all costly ones read, of a single list; 0: of several

  // Where the i-th costly one stands among all, and the j-th other one: before the i-th costly one
  // come i others / costly of the others, rounded down.
  REYNARD_HOST_DEVICE int place_of_costly(int i) const {
    if (is_mixed()) return i + static_cast<int>(int64_t{i} * others / costly);
    const int third = num_third();
    if (i < processors || third == 0) return i;
    return i < costly - third ? i + third : processors + (costly - 1 - i);
  }
  REYNARD_HOST_DEVICE int place_of_other(int j) const {
    if (!is_mixed()) return costly + j;
    return j + static_cast<int>((int64_t{j + 1} * costly + others - 1) / others);
  }

 private:
  // A short task takes as long as some eight key blocks of a long one, of which a costly one has
  // half of the costliest's on average. Mixed are those that take a quarter of the costly ones'
  // time at least.
  REYNARD_HOST_DEVICE bool is_mixed() const {
    constexpr int64_t kShortTask = 8;
    const int64_t time_of_costly = int64_t{costly} * key_blocks / 2;
    return others > 0 && 4 * kShortTask * others >= time_of_costly;
  }
  // The costly ones beyond two a processor, of a triangle or a trapezium: at least seven eighths of
  // its cost. Else, as where windows make most of them equally long, they are taken last.
  REYNARD_HOST_DEVICE int num_third() const {
    const int third = costly - 2 * processors;
    const bool falls_evenly = 16 * cost >= int64_t{7} * costly * key_blocks;
    return 0 < third && third < processors && falls_evenly ? third : 0;
  }
};

}  // namespace reynard::attention::cuda::sm90
