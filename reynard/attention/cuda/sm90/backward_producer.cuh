#pragma once
// The loading side of the backward kernel: one warp takes key blocks and loads the queries that
// see them.

#include "reynard/attention/cuda/sm90/backward_config.cuh"

namespace reynard::attention::cuda::sm90::bwd {

// Key blocks of rows that the GPU holds are taken row by row, so that few (batch, head) pairs are
// in flight together: the queries, the gradients of the outputs and the sums of dQ that they walk
// over then stay in the L2 cache. But of pairs with few queries there are many: the key blocks of a
// pair add to the same few parts of dQ, one after the other. The last pairs, a few times what fills
// the GPU, are taken in groups, a quarter of each row: the first ones of every pair, which see the
// most queries, then the next ones of every pair, so that little is left at the end. Costly pairs
// come first: short tasks of heads that are pruned fill what the long ones of the others leave of
// the end.
//
// Where such groups of the costly pairs do not fill the GPU, one that runs beside the one before
// would wait for it. Then the others come first; groups are as large as the GPU, and who takes a
// short task of the first one takes a short one of the second. What is left is taken key block by
// key block, costly ones first: processors come at intervals that let each follow the one before.
constexpr int kLeastGroup = 16, kMostGroup = 64;  // key blocks
constexpr int kSectionBlocks = 256, kMostPairs = 8, kSectionSteps = 256;
constexpr int kLastWaves = 3;  // of groups that fill the GPU

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, Shared<C>& s)
      : p_(p),
        s_(s),
        num_pairs_(p.task.problem.B * p.task.problem.H),
        num_few_(few_pairs(p)),
        num_whole_(whole_pairs(p, num_pairs_ - num_few_)) {}

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
  static __device__ int group_of_many(const Params& p) {
    return min(max(p.num_key_blocks / 4, kLeastGroup), kMostGroup);
  }
  // Groups that fill seven eighths of the GPU, such as two of 64 key blocks, leave it as busy.
  static __device__ int few_pairs(const Params& p) {
    const int costly = *p.plan.num_costly;
    return 8 * costly * group_of_many(p) < 7 * static_cast<int>(gridDim.x) ? costly : 0;
  }

  // Of so many pairs.
  static __device__ int whole_pairs(const Params& p, int num_pairs) {
    const int all = static_cast<int>(gridDim.x);
    if (p.num_key_blocks > all) return 0;
    return max(num_pairs - div_up(kLastWaves * all, group_of_many(p)), 0);
  }

  __device__ void take(int task) {
    const int num_others = num_pairs_ - num_few_;
    const int of_whole = num_whole_ * p_.num_key_blocks;
    const int of_others = num_others * p_.num_key_blocks;
    if (task < of_whole) {
      group_blocks_ = p_.num_key_blocks;
      const int held = static_cast<int>(gridDim.x) / p_.num_key_blocks;
      take_in_groups(task, {num_few_, num_whole_, held});
    } else if (task < of_others) {
      group_blocks_ = group_of_many(p_);
      const int of_long_rows = min(max(kSectionBlocks / p_.num_key_blocks, 1), kMostPairs);
      const int most = max(of_long_rows, kSectionSteps / max(p_.num_steps, 1));
      take_in_groups(task - of_whole, {num_few_ + num_whole_, num_others - num_whole_, most});
    } else {
      take_of_few(task - of_others);
    }
  }

  // Of the first pairs, fewer than would fill the GPU.
  __device__ void take_of_few(int task) {
    group_blocks_ = div_up(static_cast<int>(gridDim.x), num_few_);
    const int place = task / num_few_;
    if (place >= 2 * group_blocks_) group_blocks_ = 1;
    group_begin_ = place / group_blocks_ * group_blocks_;
    const int blocks = min(group_blocks_, p_.num_key_blocks - group_begin_);
    n_ = group_begin_ + blocks - 1 - place % group_blocks_;
    set_pair(task % num_few_);
  }

  // Some of the pairs, of which at most `together` are in flight.
  struct Pairs {
    int first, count, together;
  };
  // Within the groups of some pairs: their last key blocks first.
  __device__ void take_in_groups(int task, const Pairs& of) {
    const int group = task / (of.count * group_blocks_);
    const int in_groups = task - group * of.count * group_blocks_;
    group_begin_ = group * group_blocks_;
    const int blocks = min(group_blocks_, p_.num_key_blocks - group_begin_);
    const int section = in_groups / (of.together * blocks);
    const int rest = in_groups - section * of.together * blocks;
    const int first = section * of.together, pairs = min(of.together, of.count - first);
    n_ = group_begin_ + blocks - 1 - rest / pairs;
    set_pair(of.first + first + rest % pairs);
  }

  __device__ void set_pair(int place) {
    const int pair = __ldg(p_.plan.order + place);
    b_ = pair / p_.task.problem.H, h_ = pair % p_.task.problem.H;
  }

  // Of this key block among those that add to the dQ of a tile: in the order in which key blocks
  // are taken, so that whoever is waited for was taken before.
  __device__ int turn_among(const BlockRange& blocks) const {
    const int of_group = min(blocks.last, group_begin_ + group_blocks_ - 1) - n_;
    return max(group_begin_ - blocks.first, 0) + of_group;
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
    for (int base = tiles.first; base <= tiles.last; base += 32) {
      for (unsigned left = describe_steps(head, base, tiles.last); left; left &= left - 1) {
        const Step& step = s_.planned[__ffs(static_cast<int>(left)) - 1];
        if (lane_ == 0) push(step, head * p_.num_steps + step.m);
        stage_.next();
        place_.next();
        if (is_first && lane_ == 0) load_keys(keys_parity);
        is_first = false;
      }
    }
  }

  // Those of the tiles from `base` on, at most 32, that see the key block.
  __device__ unsigned describe_steps(int head, int base, int last) {
    const int m = base + lane_;
    bool sees = false;
    __syncwarp();  // those before were read
    if (m <= last) {
      const TileKeys own = p_.plan.keys[int64_t{head} * p_.num_steps + m];
      sees = n_ >= own.blocks.first && n_ <= own.blocks.last;
      Step& step = s_.planned[lane_];
      step = {.has_queries = true,
              .last_of_task = m == last,
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
  // num_few_: costly pairs, if these are too few to fill the GPU, else 0. num_whole_: of the
  // others, those that are taken row by row.
  const int num_pairs_, num_few_, num_whole_;
  const int lane_ = threadIdx.x % 32;
  Stage<C::kStages> stage_;
  Stage<kPlaces> place_;
  int b_ = 0, h_ = 0, n_ = 0;  // of the task
  int group_begin_ = 0, group_blocks_ = 0;
};

}  // namespace reynard::attention::cuda::sm90::bwd
