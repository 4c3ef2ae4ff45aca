#pragma once
// The order in which the forward takes query blocks where heads are pruned: plain arithmetic, which
// the host can check.
//
// Those of costly heads, of which most is left, keep the matrix unit busy; those of the others are
// short and wait for memory. Taken side by side, each hides what the other waits for. The costly
// ones come in their order, the costliest first, with as many of the others between any two: since
// long tasks become shorter, they come faster towards the end, where the short tasks of both
// fill what long ones leave. Where the others take little time beside the costly ones all of them
// come behind: there is more to lose if long tasks begin late.

#include "reynard/tensor/host_device.h"

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

struct QueryBlockOrder {
  int costly, others;  // query blocks
  int key_blocks;      // of 128 keys that the costliest one reads at most

  // Where the i-th costly one stands among all, and the j-th other one: before the i-th costly one
  // come i others / costly of the others, rounded down.
  REYNARD_HOST_DEVICE int place_of_costly(int i) const {
    return i + (is_mixed() ? static_cast<int>(int64_t{i} * others / costly) : 0);
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
};

}  // namespace reynard::attention::cuda::sm90
