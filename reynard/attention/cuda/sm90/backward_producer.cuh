#pragma once
// The loading side of the backward kernel: one warp takes key blocks and loads the queries that
// see them, or above 128 dimensions describes them to the warp that does (backward_quarters.cuh).

#include "reynard/attention/cuda/sm90/backward_config.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, Shared<C>& s) : p_(p), s_(s) {}

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
  __device__ void take(int task) {
    task_ = task / C::kHalves, half_ = task % C::kHalves;
    const int pair = p_.plan.order[taken().pair];
    b_ = pair / p_.task.problem.H, h_ = pair % p_.task.problem.H, n_ = taken().n;
  }
  // Read again each time: registers are scarce.
  __device__ const TakenKeyBlock& taken() const { return p_.plan.taken[task_]; }

  // Values first: where tasks are halves their place is given back a step before that of the keys.
  __device__ void load_keys(uint32_t parity) {
    constexpr uint32_t kBiasBytes = C::kKeyGroups * sizeof(KeyRecord);
    const uint32_t full = shared_address(&s_.keys_full);
    if constexpr (C::kHasHalves) {
      wait(shared_address(&s_.values_empty), parity);
    } else {
      wait(shared_address(&s_.keys_empty), parity);
    }
    arrive_expecting(full, C::kKeyBytes);
    load_pieces(s_.values, p_.v, full);
    if constexpr (C::kHasHalves) wait(shared_address(&s_.keys_empty), parity);
    s_.task = {b_, h_, n_, half_};
    arrive_expecting(full, C::kKeyBytes + kBiasBytes);
    const int64_t block = (int64_t{b_} * p_.task.problem.H + h_) * p_.num_key_blocks + n_;
    load_bytes(shared_address(s_.biases), p_.biases + block * C::kKeyGroups, kBiasBytes, full);
    load_pieces(s_.keys, p_.k, full);
  }
  __device__ void load_pieces(const char* to, const CUtensorMap& from, uint32_t full) {
    const int g = h_ / (p_.task.problem.H / p_.task.problem.G);
    for (int piece = 0; piece < C::kPieces; ++piece) {
      const TilePosition at = {dim_of_piece<C>(half_, piece), n_ * C::kKeys, g, b_};
      load_tile(shared_address(to) + piece * C::kKeys * kRowBytes, from, at, full);
    }
  }

  // Steps are described 32 at a time, by a lane each, so that little is left to do for one, with
  // few registers. The queries of the first step are asked for, or described, before the keys:
  // their place is free while the task before still needs its own keys.
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
    const int m = taken().downwards ? tiles.last - base - lane_ : tiles.first + base + lane_;
    bool sees = false;
    __syncwarp();  // those before were read
    if (m >= tiles.first && m <= tiles.last) {
      const TileKeys own = p_.plan.keys[int64_t{head} * p_.num_steps + m];
      sees = n_ >= own.blocks.first && n_ <= own.blocks.last;
      Step& step = s_.planned[lane_];
      step = {.has_queries = true,
              .last_of_task = m == (taken().downwards ? tiles.first : tiles.last),
              .m = m,
              .turn = taken().turn_among(own.blocks),
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
    if constexpr (C::kHasHalves) {
      s_.tiles[stage_.index] = {b_, h_, step.m, half_};
    } else {
      load_queries(step, full);
    }
    const uint32_t record = shared_address(&s_.records[stage_.index]);
    load_bytes(record, p_.records + tile, sizeof(QueryRecord), full);
    s_.steps[stage_.index] = step;
    if constexpr (!C::kDelivers) {
      write_addition({.tile = tile * C::kHalves + half_, .m = step.m, .turn = step.turn});
    }
    constexpr int kTileBytes = C::kHasHalves ? 0 : 2 * C::kPieces * kPieceBytes;
    arrive_expecting(full, kTileBytes + sizeof(QueryRecord));
  }
  __device__ void load_queries(const Step& step, uint32_t full) {
    for (int piece = 0; piece < C::kPieces; ++piece) {
      const TilePosition at = {piece * 64, step.m * kQueriesPerTile, h_, b_};
      const uint32_t offset = piece * kPieceBytes;
      load_tile(shared_address(s_.queries[stage_.index]) + offset, p_.q, at, full);
      load_tile(shared_address(s_.douts[stage_.index]) + offset, p_.dout, at, full);
    }
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
  const int lane_ = threadIdx.x % 32;
  Stage<C::kStages> stage_;
  Stage<kPlaces> place_;
  int task_ = 0, half_ = 0, b_ = 0, h_ = 0, n_ = 0;
};

}  // namespace reynard::attention::cuda::sm90::bwd
