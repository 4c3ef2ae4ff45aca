#pragma once
// The loading side of the backward kernel: one warp takes key blocks and loads the queries that
// see them.

#include "reynard/attention/cuda/sm90/backward_config.cuh"

namespace reynard::attention::cuda::sm90::bwd {

// Key blocks of costly (batch, head) pairs, those of which most is seen, are taken in waves: as
// many as there are processors, of as few pairs as that takes, so that the queries, the gradients
// of the outputs and the sums of dQ which they walk over stay in the L2 cache. Every second wave
// walks downwards.
// - Upwards: the last key block of a row first, each from the first tile that sees it. All begin
//   together, and end one after the other: the last key block, which the fewest queries see, first.
// - Downwards: the first key block first, each from the last tile. Who is free first takes what
//   most queries see, and all end together.
// Either way a key block comes to a tile some steps after the one before it, which has added by
// then. A wave downwards must be of other pairs than the one before, which is not done with their
// last tiles. The waves of a single pair all walk downwards: they neither begin nor end together,
// but few wait for long.
//
// The short tasks of the other pairs fill what the long ones leave of the end; behind them come
// short ones of the costly pairs. Of the others, several are taken together: with neighbouring key
// blocks all at work, each would wait for the one before it.
//
// Where a pair has few queries, its key blocks add to the same few parts of dQ: so many pairs are
// taken together that there are kLeastSteps.
constexpr int kLeastOthers = 8, kLeastSteps = 256;

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, Shared<C>& s)
      : p_(p),
        s_(s),
        num_costly_(*p.plan.num_costly),
        num_others_(p.task.problem.B * p.task.problem.H - num_costly_),
        least_pairs_(kLeastSteps / max(p.num_steps, 1)),
        costly_end_(num_others_ ? begin_of_short_waves() : p.num_key_blocks) {}

  __device__ void run() {
    for (uint32_t parity = 1;; parity ^= 1) {
      int task = 0;
      if (lane_ == 0) task = atomicAdd(p_.plan.next_task, 1);
      task = __shfl_sync(~0U, task, 0);
      if (task >= p_.num_tasks) break;
      take(task);
      walk(parity);
    }
    push_empty({.stop = true});
    if constexpr (!C::kDelivers) {
      for (int i = 0; i < kDqWarps; ++i) {
        if (lane_ == 0) write_addition({.stop = true});
        place_.next();
      }
    }
  }

 private:
  // Of how many costly pairs a wave takes how many key blocks each.
  struct Wave {
    int pairs, blocks;
  };
  // Where `left` of each row of key blocks are not taken yet.
  __device__ Wave wave_of(int left) const {
    const int all = static_cast<int>(gridDim.x);
    const int rows = least_pairs_ > 1 ? max(all / left, least_pairs_) : all / left;
    if (rows == 0) return {1, all};
    if (num_costly_ <= rows) return {num_costly_, left};
    const bool fills = 8 * rows * left >= 7 * all;
    return fills ? Wave{rows, left} : Wave{rows + 1, all / (rows + 1)};
  }
  // The first key block of the last waves, if those take few of each row.
  __device__ int begin_of_short_waves() const {
    int begin = 0;
    Wave wave = wave_of(p_.num_key_blocks);
    while (begin + wave.blocks < p_.num_key_blocks) {
      begin += wave.blocks;
      wave = wave_of(p_.num_key_blocks - begin);
    }
    const bool few = begin > 0 && 2 * wave.blocks < static_cast<int>(gridDim.x);
    return few ? begin : p_.num_key_blocks;
  }

  __device__ void take(int task) {
    const int of_costly = num_costly_ * costly_end_, of_others = num_others_ * p_.num_key_blocks;
    if (task < of_costly) {
      take_in_waves(task, 0);
    } else if (task < of_costly + of_others) {
      take_of_others(task - of_costly);
    } else {
      take_in_waves(task - of_costly - of_others, costly_end_);
    }
  }

  // Of the costly pairs and their key blocks from `begin` on.
  __device__ void take_in_waves(int task, int begin) {
    int waves = 0;  // before
    Wave wave = wave_of(p_.num_key_blocks - begin);
    while (task >= num_costly_ * wave.blocks) {
      task -= num_costly_ * wave.blocks;
      begin += wave.blocks;
      waves += div_up(num_costly_, wave.pairs);
      wave = wave_of(p_.num_key_blocks - begin);
    }
    const int own = task / (wave.pairs * wave.blocks), first = own * wave.pairs;
    const bool is_long_row = p_.num_key_blocks > static_cast<int>(gridDim.x);
    const bool alternates = num_costly_ > wave.pairs;
    take_of({.first_pair = first,
             .pairs = min(wave.pairs, num_costly_ - first),
             .begin = begin,
             .end = begin + wave.blocks,
             .downwards = alternates ? (waves + own) % 2 == 1 : num_costly_ == 1 && is_long_row},
            task - first * wave.blocks);
  }

  __device__ void take_of_others(int task) {
    const int together = max(kLeastOthers, least_pairs_);
    const int first = task / (together * p_.num_key_blocks) * together;
    take_of({.first_pair = num_costly_ + first,
             .pairs = min(together, num_others_ - first),
             .begin = 0,
             .end = p_.num_key_blocks,
             .downwards = false},
            task - first * p_.num_key_blocks);
  }

  // Key blocks [begin, end) of some pairs in their order.
  struct Part {
    int first_pair, pairs, begin, end;
    bool downwards;
  };
  __device__ void take_of(const Part& part, int task) {
    const int place = task / part.pairs;
    part_begin_ = part.begin;
    part_end_ = part.end;
    downwards_ = part.downwards;
    n_ = downwards_ ? part_begin_ + place : part_end_ - 1 - place;
    const int pair = __ldg(p_.plan.order + part.first_pair + task % part.pairs);
    b_ = pair / p_.task.problem.H, h_ = pair % p_.task.problem.H;
  }

  // Of this key block among those that add to the dQ of a tile: in the order in which key blocks
  // are taken, so that whoever is waited for was taken before.
  __device__ int turn_among(const BlockRange& blocks) const {
    const int of_part =
        downwards_ ? n_ - max(blocks.first, part_begin_) : min(blocks.last, part_end_ - 1) - n_;
    return max(part_begin_ - blocks.first, 0) + of_part;
  }

  __device__ void load_keys(uint32_t parity) {
    const int g = h_ / (p_.task.problem.H / p_.task.problem.G);
    wait(shared_address(&s_.keys_empty), parity);
    const uint32_t full = shared_address(&s_.keys_full);
    s_.task = {b_, h_, n_};
    constexpr uint32_t kBiasBytes = C::kKeyGroups * sizeof(KeyRecord);
    arrive_expecting(full, 2 * C::kKeyBytes + kBiasBytes);
    const int64_t block = (int64_t{b_} * p_.task.problem.H + h_) * p_.num_key_blocks + n_;
    load_bytes(shared_address(s_.biases), p_.biases + block * C::kKeyGroups, kBiasBytes, full);
    for (int piece = 0; piece < C::kPieces; ++piece) {
      const TilePosition at = {piece * 64, n_ * C::kKeys, g, b_};
      const uint32_t offset = piece * C::kKeys * kRowBytes;
      load_tile(shared_address(s_.keys) + offset, p_.k, at, full);
      load_tile(shared_address(s_.values) + offset, p_.v, at, full);
    }
  }

  // Steps are described 32 at a time, by a lane each, so that little is left to do for one, with
  // few registers. The queries of the first step are asked for before the keys: their place is free
  // while the task before still needs its own keys.
  __device__ void walk(uint32_t keys_parity) {
    const int head = b_ * p_.task.problem.H + h_;
    const TileRange tiles = p_.plan.tiles[int64_t{head} * p_.num_key_blocks + n_];
    if (tiles.last < 0) {
      push_empty({});
      if (lane_ == 0) load_keys(keys_parity);
      return;
    }
    bool is_first = true;
    for (int base = 0; base <= tiles.last - tiles.first; base += 32) {
      for (unsigned left = describe_steps(head, tiles, base); left; left &= left - 1) {
        const Step& step = s_.planned[__ffs(static_cast<int>(left)) - 1];
        if (lane_ == 0) push(step, head * p_.num_steps + step.m);
        stage_.next();
        place_.next();
        if (is_first && lane_ == 0) load_keys(keys_parity);
        is_first = false;
      }
    }
  }

  // Those of the tiles from the base-th on, at most 32, that see the key block.
  __device__ unsigned describe_steps(int head, const TileRange& tiles, int base) {
    const int m = downwards_ ? tiles.last - base - lane_ : tiles.first + base + lane_;
    bool sees = false;
    __syncwarp();  // those before were read
    if (m >= tiles.first && m <= tiles.last) {
      const TileKeys own = p_.plan.keys[int64_t{head} * p_.num_steps + m];
      sees = n_ >= own.blocks.first && n_ <= own.blocks.last;
      Step& step = s_.planned[lane_];
      step = {.has_queries = true,
              .last_of_task = m == (downwards_ ? tiles.first : tiles.last),
              .m = m,
              .turn = turn_among(own.blocks),
              .start = own.start};
#pragma unroll
      for (int i = 0; i < C::kKeyGroups; ++i) step.sights[i] = sight_of(own, i);
    }
    __syncwarp();
    return __ballot_sync(~0U, sees);
  }

  __device__ Sight sight_of(const TileKeys& keys, int key_group) const {
    const int first = n_ * C::kKeys + key_group * kOwnKeys, end = first + kOwnKeys;
    if (first >= keys.full_begin && end <= keys.full_end) return Sight::kAll;
    return first < keys.end && end > keys.begin ? Sight::kSome : Sight::kNone;
  }

  // The copy engine begins before the step is described.
  __device__ void push(const Step& step, int tile) {
    const uint32_t full = shared_address(&s_.stage_full[stage_.index]);
    wait(shared_address(&s_.stage_empty[stage_.index]), stage_.parity ^ 1);
    for (int piece = 0; piece < C::kPieces; ++piece) {
      const TilePosition at = {piece * 64, step.m * kQueriesPerTile, h_, b_};
      const uint32_t offset = piece * kPieceBytes;
      load_tile(shared_address(s_.queries[stage_.index]) + offset, p_.q, at, full);
      load_tile(shared_address(s_.douts[stage_.index]) + offset, p_.dout, at, full);
    }
    const uint32_t record = shared_address(&s_.records[stage_.index]);
    load_bytes(record, p_.records + tile, sizeof(QueryRecord), full);
    s_.steps[stage_.index] = step;
    if constexpr (!C::kDelivers) {
      write_addition({.tile = tile, .m = step.m, .turn = step.turn});
    }
    arrive_expecting(full, 2 * C::kPieces * kPieceBytes + sizeof(QueryRecord));
  }
  __device__ void write_addition(const Addition& addition) {
    wait(shared_address(&s_.addition_empty[place_.index]), place_.parity ^ 1);
    s_.additions[place_.index] = addition;
    arrive(shared_address(&s_.addition_full[place_.index]));
  }
  __device__ void push_empty(const Step& step) {
    if (lane_ == 0) {
      wait(shared_address(&s_.stage_empty[stage_.index]), stage_.parity ^ 1);
      s_.steps[stage_.index] = step;
      arrive(shared_address(&s_.stage_full[stage_.index]));
    }
    stage_.next();
  }

  const Params& p_;
  Shared<C>& s_;
  const int num_costly_, num_others_;
  const int least_pairs_;
  const int costly_end_;  // key blocks of costly pairs before it are taken before the others
  const int lane_ = threadIdx.x % 32;
  Stage<C::kStages> stage_;
  Stage<kPlaces> place_;
  int b_ = 0, h_ = 0, n_ = 0;          // of the task
  int part_begin_ = 0, part_end_ = 0;  // key blocks among which it was taken
  bool downwards_ = false;
};

}  // namespace reynard::attention::cuda::sm90::bwd
