#pragma once
// The order in which the backward takes key blocks. Those of a (batch, head) pair, a row, add to
// the same sums of dQ, in the order in which they are taken. Plain arithmetic, which the host can
// check; bench/backward_schedule.py simulates what it is worth.
//
// Key blocks of whole rows, of which nearly nothing is hidden but by causality, are taken in waves:
// as many as there are processors, of as few pairs as that takes, so that the queries, the
// gradients of the outputs and the sums of dQ which they walk over stay in the L2 cache. Every
// second wave walks downwards.
// - Upwards: the last key block of a row first, each from the first tile that sees it. All begin
//   together, and end one after the other: the last key block, which the fewest queries see, first.
// - Downwards: the first key block first, each from the last tile. Who is free first takes what
//   most queries see, and all end together.
// Either way a key block comes to a tile some steps after the one before it, which has added by
// then. A wave downwards must be of other pairs than the one before, which is not done with their
// last tiles.
//
// The waves of a single row that is longer than the GPU is wide all walk downwards, and each key
// block begins only when the one before it has added to the last tile. Where those that the fewest
// queries see are taken first, they end further apart than they began, so that no key block of the
// next wave comes too early; where they are taken last, all end together. Two waves of the one kind
// before two of the other: with more, what they walk over does not stay in the L2 cache. The first
// wave has none before it: while its key blocks begin, a few at a time, the other processors have
// tasks of the other rows.
//
// The other rows, those that pruning, windows or documents cut and those that are no triangles,
// fill with their short tasks what the long ones leave of the end; behind them come short ones of
// whole rows. They are taken upwards, several rows together, if what they walk over stays in the L2
// cache: with neighbouring key blocks all at work, each would wait for the one before it. More than
// kMostRows bring nothing.
//
// Where a pair has few queries, its key blocks add to the same few sums, one after the other: so
// many pairs are taken together that there are kLeastTiles.

#include "reynard/tensor/host_device.h"

namespace reynard::attention::cuda::sm90 {

REYNARD_HOST_DEVICE constexpr int min_of(int a, int b) {
  return a < b ? a : b;
}
REYNARD_HOST_DEVICE constexpr int max_of(int a, int b) {
  return a < b ? b : a;
}

// Key blocks [first, last] of a task; none when last < first.
struct BlockRange {
  int first = 0, last = -1;
};

// A key block and those among which it was taken: [begin, end) of its row, one after the other.
struct TakenKeyBlock {
  int pair = 0;  // in the order of pairs: whole rows first
  int n = 0;     // of the row
  int begin = 0, end = 0;
  bool ascending = false;  // whether those of smaller n were taken before it
  bool downwards = false;  // whether it begins with the last tile that sees it

  // How many of the key blocks that add to the dQ of a tile were taken before it.
  REYNARD_HOST_DEVICE int turn_among(const BlockRange& blocks) const {
    const int of_part =
        ascending ? n - max_of(blocks.first, begin) : min_of(blocks.last, end - 1) - n;
    return max_of(begin - blocks.first, 0) + of_part;
  }
};

class KeyBlockOrder {
 public:
  static constexpr int kMostRows = 8;      // of others that are taken together
  static constexpr int kLeastTiles = 256;  // of queries, of all pairs that are taken together
  // Key blocks of a single row of which each has added to a first tile within a short task.
  static constexpr int kStartsTogether = 6;

  struct Counts {
    int processors = 0;
    int blocks = 0;           // key blocks of a row
    int tiles = 0;            // of queries of a row
    int whole = 0;            // pairs of whole rows
    int others = 0;           // pairs of other rows
    int tiles_of_others = 0;  // that see any of some neighbouring key blocks of another row
    int tiles_in_cache = 0;   // whose queries, gradients and sums of dQ stay in the L2 cache
  };

  REYNARD_HOST_DEVICE explicit KeyBlockOrder(const Counts& counts)
      : processors_(counts.processors),
        blocks_(counts.blocks),
        whole_(counts.whole),
        others_(counts.others),
        least_pairs_(kLeastTiles / max_of(counts.tiles, 1)),
        others_together_(max_of(least_pairs_, rows_in_cache(counts))),
        is_long_row_(whole_ == 1 && blocks_ > processors_),
        whole_end_(others_ ? begin_of_short_waves() : blocks_) {}

  // Of tasks from 0 on, (whole + others) blocks in all.
  REYNARD_HOST_DEVICE TakenKeyBlock take(int task) const {
    if (is_long_row_) return take_with_long_row(task);
    const int of_whole = whole_ * whole_end_, of_others = others_ * blocks_;
    if (task < of_whole) return take_in_waves(task, 0);
    if (task < of_whole + of_others) return take_of_others(task - of_whole);
    return take_in_waves(task - of_whole - of_others, whole_end_);
  }

 private:
  // Of how many pairs a wave takes how many key blocks each.
  struct Wave {
    int pairs, blocks;
  };
  // Some pairs and their key blocks [begin, end).
  struct Part {
    int first_pair, pairs, begin, end;
    bool ascending, downwards;
  };

  static REYNARD_HOST_DEVICE int rows_in_cache(const Counts& counts) {
    const int rows = counts.tiles_in_cache / max_of(counts.tiles_of_others, 1);
    return min_of(max_of(rows, 1), kMostRows);
  }

  // Where `left` of each whole row are not taken yet. Rows are taken as a whole where that leaves
  // at most an eighth of the processors to the next wave.
  REYNARD_HOST_DEVICE Wave wave_of(int left) const {
    int rows = processors_ / left;
    if (least_pairs_ > 1) rows = max_of(rows, least_pairs_);
    if (rows == 0) return {1, processors_};
    if (whole_ <= rows) return {whole_, left};
    const bool fills = 8 * rows * left >= 7 * processors_;
    return fills ? Wave{rows, left} : Wave{rows + 1, processors_ / (rows + 1)};
  }
  // The first key block of the last waves, which take few of each row; `blocks` if there are none.
  REYNARD_HOST_DEVICE int begin_of_short_waves() const {
    int begin = wave_of(blocks_).blocks;
    while (begin < blocks_) {
      const Wave wave = wave_of(blocks_ - begin);
      if (2 * wave.blocks < processors_) return begin;
      begin += wave.blocks;
    }
    return blocks_;
  }

  // Of whole rows and their key blocks from `begin` on.
  REYNARD_HOST_DEVICE TakenKeyBlock take_in_waves(int task, int begin) const {
    int waves = 0;  // before
    Wave wave = wave_of(blocks_ - begin);
    while (task >= whole_ * wave.blocks) {
      task -= whole_ * wave.blocks;
      begin += wave.blocks;
      waves += (whole_ + wave.pairs - 1) / wave.pairs;
      wave = wave_of(blocks_ - begin);
    }
    const int own = task / (wave.pairs * wave.blocks), first = own * wave.pairs;
    const bool downwards = whole_ > wave.pairs && (waves + own) % 2 == 1;
    return take_of({.first_pair = first,
                    .pairs = min_of(wave.pairs, whole_ - first),
                    .begin = begin,
                    .end = begin + wave.blocks,
                    .ascending = downwards,
                    .downwards = downwards},
                   task - first * wave.blocks);
  }

  // Of a single whole row and, while its first wave begins and behind its last, of the others.
  REYNARD_HOST_DEVICE TakenKeyBlock take_with_long_row(int task) const {
    int others = 0;  // taken before
    for (int begun = 0; begun < processors_;) {
      const int own = min_of(kStartsTogether, processors_ - begun);
      if (task < own) return take_of_long_row(begun + task);
      task -= own, begun += own;
      const int meanwhile = min_of(processors_ - begun, others_ * blocks_ - others);
      if (task < meanwhile) return take_of_others(others + task);
      task -= meanwhile, others += meanwhile;
    }
    const int left = blocks_ - processors_;
    return task < left ? take_of_long_row(processors_ + task)
                       : take_of_others(others + task - left);
  }

  REYNARD_HOST_DEVICE TakenKeyBlock take_of_long_row(int place) const {
    const int wave = place / processors_, waves = (blocks_ + processors_ - 1) / processors_;
    const int begin = wave * processors_;
    return take_of({.first_pair = 0,
                    .pairs = 1,
                    .begin = begin,
                    .end = min_of(begin + processors_, blocks_),
                    .ascending = (waves - 1 - wave) % 4 < 2,
                    .downwards = true},
                   place - begin);
  }

  REYNARD_HOST_DEVICE TakenKeyBlock take_of_others(int task) const {
    const int first = task / (others_together_ * blocks_) * others_together_;
    return take_of({.first_pair = whole_ + first,
                    .pairs = min_of(others_together_, others_ - first),
                    .begin = 0,
                    .end = blocks_,
                    .ascending = false,
                    .downwards = false},
                   task - first * blocks_);
  }

  static REYNARD_HOST_DEVICE TakenKeyBlock take_of(const Part& part, int task) {
    const int place = task / part.pairs;
    return {.pair = part.first_pair + task % part.pairs,
            .n = part.ascending ? part.begin + place : part.end - 1 - place,
            .begin = part.begin,
            .end = part.end,
            .ascending = part.ascending,
            .downwards = part.downwards};
  }

  const int processors_, blocks_, whole_, others_;
  const int least_pairs_, others_together_;
  const bool is_long_row_;
  const int whole_end_;  // key blocks of whole rows before it are taken before the others
};

}  // namespace reynard::attention::cuda::sm90
