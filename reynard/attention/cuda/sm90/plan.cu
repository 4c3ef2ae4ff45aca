#include "reynard/attention/cuda/sm90/plan.h"

#include "reynard/attention/cuda/visibility.cuh"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cuda_bf16.h>

namespace reynard::attention::cuda::sm90 {

namespace {

// Heads whose tasks are in flight together: as many as leave their keys and values in the L2 cache.
// Of those that pruning or documents cut, tasks that share keys must be near to each other.
constexpr int kHeadsPerSection = 8, kCutHeadsPerSection = 2;
constexpr int kPlanThreads = 512;
constexpr int kMostCosts = 4096;  // longer ranges share the last bin

// Where the numbers that meet ones stand, and which ones there are.
enum class Split { kOnesLast, kOnesFirst, kNoOnes };

// value as {high, middle, low, 1, 1, 1, 0, 0}, {1, 1, 1, high, middle, low, 0, 0} or with zeros
// first.
__device__ uint4 split_number(float value, Split form) {
  const auto bits = [](__nv_bfloat16 x) { return static_cast<uint32_t>(__bfloat16_as_ushort(x)); };
  const __nv_bfloat16 high = __float2bfloat16_rn(value);
  const float rest = value - __bfloat162float(high);
  const __nv_bfloat16 middle = __float2bfloat16_rn(rest);
  const __nv_bfloat16 low = __float2bfloat16_rn(rest - __bfloat162float(middle));
  constexpr uint32_t kOne = 0x3F80;
  const uint32_t first = form == Split::kOnesFirst ? kOne : 0;
  if (form != Split::kOnesLast) {
    return {first | first << 16, first | bits(high) << 16, bits(middle) | bits(low) << 16, 0};
  }
  return {bits(high) | bits(middle) << 16, bits(low) | kOne << 16, kOne | kOne << 16, 0};
}

// A warp makes the index-th record. Where the sums of queries are those of keys, it writes them
// too, and what follows the last query.
__device__ void make_record(const QueryPreparation& to, int64_t index, bool with_queries) {
  const Problem& p = to.problem;
  const int num_blocks = div_up(p.Tk, kKeysPerBlock), lane = threadIdx.x % 32;
  if (index >= int64_t{p.B} * p.H * num_blocks) return;
  const int64_t head = index / num_blocks;
  const int n = static_cast<int>(index % num_blocks), first = n * kKeysPerBlock;
  const double* sums = p.key_sums + head * p.Tk;
  const double factor = 1.0 / p.scale;
  double own[kKeysPerBlock / 32], last[kKeysPerBlock / 32];
#pragma unroll
  for (int i = 0; i < kKeysPerBlock / 32; ++i) {
    own[i] = sums[min(first + 32 * i + lane, p.Tk - 1)];
    last[i] = sums[min(first + (32 * i / to.keys + 1) * to.keys, p.Tk) - 1];
  }
  BiasRecord& record = to.records[index];
  SplitSum* const query_sums = to.query_sums + head * to.padded;
#pragma unroll
  for (int i = 0; i < kKeysPerBlock / 32; ++i) {
    const int key = 32 * i + lane;
    const auto bias = static_cast<float>((last[i] - own[i]) * factor);
    reinterpret_cast<uint4*>(record.keys)[key] = split_number(bias, Split::kOnesLast);
    const SplitSum sum = split_sum(own[i]);
    record.sums[key] = sum;
    if (with_queries && first + key < to.padded) query_sums[first + key] = sum;
  }
  if (!with_queries || n + 1 < num_blocks) return;
  for (int i = first + kKeysPerBlock + lane; i < to.padded; i += 32) {
    query_sums[i] = split_sum(sums[p.Tk - 1]);
  }
}

// A warp makes the index-th record of 64 keys, of `num_records` that a head has.
__device__ void make_key_record(const Problem& p,
                                KeyRecord* records,
                                int64_t index,
                                int num_records) {
  if (index >= int64_t{p.B} * p.H * num_records) return;
  const int lane = threadIdx.x % 32;
  const int first = static_cast<int>(index % num_records) * kOwnKeys;
  const auto sum_of = [&](int key) {
    return p.key_sums ? p.key_sums[index / num_records * p.Tk + min(key, p.Tk - 1)] : 0;
  };
  const double last = sum_of(first + kOwnKeys - 1), factor = 0.5 / p.scale;
  KeyRecord& record = records[index];
#pragma unroll
  for (int key = lane; key < kOwnKeys; key += 32) {
    const auto bias = static_cast<float>((last - sum_of(first + key)) * factor);
    reinterpret_cast<uint4*>(record.keys)[key] = split_number(bias, Split::kOnesLast);
  }
  if (lane == 0) {
    record.last = split_sum(last);
    record.padding[0] = record.padding[1] = 0;
  }
}

constexpr int kRecordsPerBlock = kPlanThreads / 32;

constexpr int kTilesPerBlock = kPlanThreads / kQueriesPerTile;

// One thread of the 64 that make the index-th record; the sums of the gradients of its query's
// scores begin with 0.
__device__ void make_query_record(const BackwardPreparation& to, int64_t index) {
  const Problem& p = to.task.problem;
  const int num_tiles = div_up(p.Tq, kQueriesPerTile);
  if (index >= int64_t{p.B} * p.H * num_tiles) return;
  const int64_t row = index / num_tiles * p.Tq;
  const int thread = static_cast<int>(threadIdx.x) % kQueriesPerTile;
  const int first = static_cast<int>(index % num_tiles) * kQueriesPerTile, i = first + thread;
  const auto sum_of = [&](int query) { return p.query_sums ? p.query_sums[row + query] : 0; };
  const double reference = sum_of(min(first, p.Tq - 1));
  float logit = 0, delta = 0;
  if (i < p.Tq) {
    const float lse = to.task.lse[row + i];
    // A row that sees nothing is hidden in every tile.
    if (lse != -INFINITY) logit = static_cast<float>((sum_of(i) - reference - lse) * 0.5 / p.scale);
    delta = static_cast<float>(-0.5 * to.task.delta[row + i]);
    if (to.task.dquery_sums) to.task.dquery_sums[row + i] = 0;
  }
  QueryRecord& record = to.records[index];
  reinterpret_cast<uint4*>(record.logits)[thread] = split_number(logit, Split::kOnesFirst);
  reinterpret_cast<uint4*>(record.deltas)[thread] = split_number(delta, Split::kNoOnes);
  if (thread == 0) {
    record.first = split_sum(reference);
    record.padding[0] = record.padding[1] = 0;
  }
}

// Keys that any of the rows [first, end) sees. Starts need not be monotone over blocks of 128
// queries, so each group of 64 is asked.
__device__ KeyRange keys_of(const Problem& p, int b, int h, int first, int end) {
  int begin = p.Tk;
  for (int row = first; row < end; row += 64) {
    begin = min(begin, keys_of_query(p, b, h, row).begin);
  }
  return {begin, keys_of_query(p, b, h, end - 1).end};
}

__device__ BlockRange blocks_of(const KeyRange& keys, int block_keys) {
  if (keys.empty()) return {};
  return {keys.begin / block_keys, (keys.end - 1) / block_keys};
}

// Whether every query is a key, and its sum that of the key.
__host__ __device__ bool same_sums(const Problem& p) {
  return p.query_sums == p.key_sums && p.Tq == p.Tk;
}

// Whether pruning leaves the last queries of a (batch, head) pair at least half of their keys.
__device__ bool is_costly(const Problem& p, int pair, int rows) {
  const int first = (div_up(p.Tq, rows) - 1) * rows, b = pair / p.H;
  const KeyRange kept = keys_of(p, b, pair % p.H, first, p.Tq);
  return 2 * (kept.end - kept.begin) >= kept.end - keys_from(p, b, 0, first).begin;
}

// Pairs of one kind, costly ones or others, whose tasks a block of threads puts in order.
struct Section {
  bool is_costly = true;
  int first = 0, num_pairs = 0;  // among those of its kind
  int num_costly = 0;            // of all pairs
};

// That of this block. A thread for each pair: where they are more, or none is pruned, all count as
// costly and stay in their order, since every block compares all with all.
__device__ Section choose_pairs(const Problem& p, int rows, int (&chosen)[kHeadsPerSection]) {
  __shared__ bool costly[kPlanThreads];
  const int num_pairs = p.B * p.H, pair = static_cast<int>(threadIdx.x);
  const bool told_apart = p.start && num_pairs <= kPlanThreads;
  const bool is_pair = pair < num_pairs;
  const bool is_own_costly = is_pair && told_apart && is_costly(p, pair, rows);
  costly[pair] = is_own_costly;
  const int count = __syncthreads_count(is_own_costly);
  Section section = {.num_costly = told_apart ? count : num_pairs};
  const int most_costly = p.first_key ? kCutHeadsPerSection : kHeadsPerSection;
  const int of_costly = div_up(section.num_costly, most_costly);
  const int number = static_cast<int>(blockIdx.x);
  section.is_costly = number < of_costly;
  const int most = section.is_costly ? most_costly : kCutHeadsPerSection;
  section.first = (section.is_costly ? number : number - of_costly) * most;
  const int of_kind = section.is_costly ? section.num_costly : num_pairs - section.num_costly;
  section.num_pairs = max(min(most, of_kind - section.first), 0);
  if (!told_apart) {
    if (pair < section.num_pairs) chosen[pair] = section.first + pair;
  } else if (is_pair && is_own_costly == section.is_costly) {
    int place = -section.first;
    for (int other = 0; other < pair; ++other) place += costly[other] == is_own_costly ? 1 : 0;
    if (place >= 0 && place < most) chosen[place] = pair;
  }
  return section;
}

// A block of threads for a section of pairs: a counting sort of its tasks by falling cost, in
// blocks of 128 keys, of heads that are not costly in powers of two. Within equal costs those of
// the same queries stand side by side, as their heads lie in memory; that order may differ between
// runs, and results do not depend on it.
__device__ void plan_section(const QueryPreparation& to) {
  __shared__ int places[kMostCosts + 1], chosen[kHeadsPerSection], cost_of_all;
  const Problem& p = to.problem;
  const Plan& plan = to.plan;
  const int rows = to.rows, num_blocks = div_up(p.Tq, rows);
  const Section section = choose_pairs(p, rows, chosen);
  const int num_pairs = section.num_pairs, num_tasks = num_pairs * num_blocks;
  if (num_tasks == 0) return;  // never the first one
  const int num_costly = section.num_costly * num_blocks, first_task = section.first * num_blocks;
  BlockRange* const ranges = plan.ranges + (section.is_costly ? 0 : num_costly) + first_task;
  const int most = min(div_up(p.Tk, kKeysPerBlock), kMostCosts);
  const int parts = kKeysPerBlock / to.keys;
  const auto cost_of = [&](const BlockRange& range) {
    return div_up(range.last - range.first + 1, parts);
  };
  const auto bin_of = [&](const BlockRange& range) {  // costly first
    int cost = cost_of(range);
    if (!section.is_costly && cost > 1) cost = 1 << (32 - __clz(cost - 1));
    return most - min(cost, most);
  };
  for (int i = threadIdx.x; i <= most; i += kPlanThreads) places[i] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *plan.next_task = 0;
  if (threadIdx.x == 0) cost_of_all = 0;
  __syncthreads();
  int own_cost = 0;
  for (int task = threadIdx.x; task < num_tasks; task += kPlanThreads) {
    const int head = chosen[task % num_pairs], first = task / num_pairs * rows;
    const KeyRange keys = keys_of(p, head / p.H, head % p.H, first, min(first + rows, p.Tq));
    const BlockRange range = blocks_of(keys, to.keys);
    ranges[task] = range;
    own_cost += cost_of(range);
    atomicAdd(&places[bin_of(range)], 1);
  }
  atomicAdd(&cost_of_all, own_cost);
  __syncthreads();
  if (threadIdx.x < 32) {  // exclusive sums of the counts by one warp
    int before = 0;
    for (int base = 0; base <= most; base += 32) {
      const int i = base + threadIdx.x;
      const int count = i <= most ? places[i] : 0;
      int sum = count;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0U, sum, distance);
        if (threadIdx.x >= distance) sum += other;
      }
      if (i <= most) places[i] = before + sum - count;
      before += __shfl_sync(~0U, sum, 31);
    }
  }
  __syncthreads();
  const QueryBlockOrder order = {.costly = num_costly,
                                 .others = (p.B * p.H - section.num_costly) * num_blocks,
                                 .key_blocks = div_up(p.Tk, kKeysPerBlock),
                                 .processors = to.processors,
                                 .cost = num_pairs == section.num_costly ? cost_of_all : 0};
  for (int task = threadIdx.x; task < num_tasks; task += kPlanThreads) {
    const BlockRange range = ranges[task];
    QueryTask taken = {.head = chosen[task % num_pairs], .m = task / num_pairs, .blocks = range};
    taken.batch = taken.head / p.H;
    for (int group = 0; group * 64 < rows; ++group) {
      taken.starts[group] = start_of(p, taken.head, min(taken.m * rows + group * 64, p.Tq - 1));
    }
    const int i = first_task + atomicAdd(&places[bin_of(range)], 1);
    plan.tasks[section.is_costly ? order.place_of_costly(i) : order.place_of_other(i)] = taken;
  }
}

// Blocks of threads for sections of heads, then for records, then for the sums of queries where
// those are not the sums of the keys.
__global__ void __launch_bounds__(kPlanThreads)
    prepare_kernel(const QueryPreparation to, int num_sections, int record_blocks) {
  tensor::let_next_kernel_start();
  tensor::wait_for_kernel_before();
  const Problem& p = to.problem;
  if (static_cast<int>(blockIdx.x) < num_sections) return plan_section(to);
  const int64_t block = blockIdx.x - num_sections;
  if (block < record_blocks) {
    const int64_t index = block * kRecordsPerBlock + threadIdx.x / 32;
    return make_record(to, index, same_sums(p));
  }
  const int64_t i = (block - record_blocks) * kPlanThreads + threadIdx.x, head = i / to.padded;
  if (head >= int64_t{p.B} * p.H) return;
  const int query = min(static_cast<int>(i % to.padded), p.Tq - 1);
  to.query_sums[i] = split_sum(p.query_sums[head * p.Tq + query]);
}

// The task-th tile of queries of all heads.
__device__ void plan_tile(const Problem& p, int block_keys, const KeyPlan& plan, int task) {
  const int num_tiles = div_up(p.Tq, kQueriesPerTile);
  if (task == 0) *plan.next_task = 0;
  if (task >= p.B * p.H * num_tiles) return;
  const int head = task / num_tiles, first = task % num_tiles * kQueriesPerTile;
  const int b = head / p.H, h = head % p.H, end = first + kQueriesPerTile;
  const KeyRange seen = keys_of(p, b, h, first, min(end, p.Tq));
  TileKeys keys = {.blocks = blocks_of(seen, block_keys),
                   .start = start_of(p, head, first),
                   .begin = seen.begin,
                   .end = seen.end};
  if (end <= p.Tq) {
    keys.full_begin = keys_of_query(p, b, h, end - 1).begin;
    keys.full_end = keys_of_query(p, b, h, first).end;
  }
  plan.keys[task] = keys;
  atomicAdd(plan.costs + head, keys.blocks.last - keys.blocks.first + 1);
}

// Whole key blocks.
__host__ __device__ int key_records_of_head(const Problem& p, int block_keys) {
  return div_up(p.Tk, block_keys) * (block_keys / kOwnKeys);
}

// Blocks of threads for tiles of queries, then for their records, then for those of keys.
__global__ void __launch_bounds__(kPlanThreads)
    backward_plan_kernel(const BackwardPreparation to, int tile_blocks, int query_blocks) {
  tensor::let_next_kernel_start();
  const Problem& p = to.task.problem;
  int64_t block = blockIdx.x;
  if (block < tile_blocks) {
    const int task = static_cast<int>(block) * kPlanThreads + threadIdx.x;
    return plan_tile(p, to.block_keys, to.plan, task);
  }
  block -= tile_blocks;
  if (block < query_blocks) {
    return make_query_record(to, block * kTilesPerBlock + threadIdx.x / kQueriesPerTile);
  }
  block -= query_blocks;
  const int64_t index = block * kRecordsPerBlock + threadIdx.x / 32;
  make_key_record(p, to.biases, index, key_records_of_head(p, to.block_keys));
}

// The least cost of a whole row: three quarters of that of a causal triangle. Where Tq != Tk, or
// nothing is causal, no row is whole.
__device__ int cost_of_whole_row(const Problem& p, int block_keys) {
  constexpr int kNone = 0x7fffffff;
  if (!p.causal || p.Tq != p.Tk) return kNone;
  const int tiles = div_up(p.Tq, kQueriesPerTile), of_block = block_keys / kQueriesPerTile;
  const int64_t steps = tiles / of_block, rest = tiles % of_block;  // that see one key block more
  const int64_t triangle = steps * (steps + 1) / 2 * of_block + rest * (steps + 1);
  return static_cast<int>((3 * triangle + 3) / 4);
}

// Whole rows have the highest rank. Lower costs are told apart by powers of two, so that heads that
// are pruned alike stay side by side as they lie in memory.
constexpr int kWholeRank = 32;
__device__ int rank_of(int cost, int whole_cost) {
  return cost >= whole_cost ? kWholeRank : 32 - __clz(cost);
}

// Where a pair stands among all, those of high rank first.
__device__ int place_of(const int* costs, int num_pairs, int whole_cost, int pair) {
  const int own = rank_of(costs[pair], whole_cost);
  int place = 0;
#pragma unroll 8
  for (int other = 0; other < num_pairs; ++other) {
    const int rank = rank_of(costs[other], whole_cost);
    place += rank > own || (rank == own && other < pair) ? 1 : 0;
  }
  return place;
}

// How many rows are whole, and the largest cost of another one.
struct Rows {
  int num_whole, most_of_others;
};
// By all threads of a block.
__device__ Rows rows_of(const int* costs, int num_pairs, int whole_cost) {
  __shared__ int num_whole, most;
  if (threadIdx.x == 0) num_whole = most = 0;
  __syncthreads();
  for (int pair = threadIdx.x; pair < num_pairs; pair += kPlanThreads) {
    if (costs[pair] >= whole_cost) {
      atomicAdd(&num_whole, 1);
    } else {
      atomicMax(&most, costs[pair]);
    }
  }
  __syncthreads();
  return {num_whole, most};
}

// One warp per key block of a head: the first and the last tile that read it; and per task: the key
// block that it takes. One thread per pair: its place in the order.
__global__ void __launch_bounds__(kPlanThreads) key_blocks_kernel(const BackwardPreparation to) {
  tensor::let_next_kernel_start();
  tensor::wait_for_kernel_before();
  const Problem& p = to.task.problem;
  const KeyPlan& plan = to.plan;
  const int num_tiles = div_up(p.Tq, kQueriesPerTile), num_blocks = div_up(p.Tk, to.block_keys);
  const int thread = blockIdx.x * kPlanThreads + threadIdx.x, num_pairs = p.B * p.H;
  const int whole_cost = cost_of_whole_row(p, to.block_keys);
  if (thread < num_pairs) plan.order[place_of(plan.costs, num_pairs, whole_cost, thread)] = thread;
  const Rows rows = rows_of(plan.costs, num_pairs, whole_cost);
  const int warp = thread / 32, lane = thread % 32;
  if (warp >= num_pairs * num_blocks) return;
  const TileKeys* keys = plan.keys + int64_t{warp / num_blocks} * num_tiles;
  const int n = warp % num_blocks;
  TileRange found = {num_tiles, -1};
  constexpr int kTogether = 8;  // reads of a lane that do not wait for each other
  for (int base = 0; base < num_tiles; base += 32 * kTogether) {
    BlockRange blocks[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int m = base + 32 * i + lane;
      blocks[i] = m < num_tiles ? keys[m].blocks : BlockRange();
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const bool reads = blocks[i].first <= n && n <= blocks[i].last;
      const unsigned votes = __ballot_sync(~0U, reads);
      if (votes == 0) continue;
      found.first = min(found.first, base + 32 * i + __ffs(static_cast<int>(votes)) - 1);
      found.last = base + 32 * i + 31 - __clz(static_cast<int>(votes));
    }
  }
  if (lane != 0) return;
  plan.tiles[warp] = found;
  const KeyBlockOrder order(
      {.processors = to.processors,
       .blocks = num_blocks,
       .tiles = num_tiles,
       .whole = rows.num_whole,
       .others = num_pairs - rows.num_whole,
       // Of a triangle half see a key block on average, and all its first.
       .tiles_of_others = min(2 * rows.most_of_others / num_blocks, num_tiles),
       .tiles_in_cache = to.tiles_in_cache});
  plan.taken[warp] = order.take(warp);
}

}  // namespace

void prepare_backward(const BackwardPreparation& to, cudaStream_t stream) {
  const Problem& p = to.task.problem;
  const int64_t heads = int64_t{p.B} * p.H, tiles = heads * div_up(p.Tq, kQueriesPerTile);
  const auto blocks_for = [](int64_t count, int of_a_block) {
    return static_cast<int>((count + of_a_block - 1) / of_a_block);
  };
  const int tile_blocks = blocks_for(tiles, kPlanThreads);
  const int query_blocks = blocks_for(tiles, kTilesPerBlock);
  const int64_t key_records = heads * key_records_of_head(p, to.block_keys);
  const int blocks = tile_blocks + query_blocks + blocks_for(key_records, kRecordsPerBlock);
  // Not early: it never waits.
  backward_plan_kernel<<<blocks, kPlanThreads, 0, stream>>>(to, tile_blocks, query_blocks);
  REYNARD_CHECK_LAUNCH();
  tensor::launch_early(key_blocks_kernel,
                       blocks_for(heads * div_up(p.Tk, to.block_keys) * 32, kPlanThreads),
                       kPlanThreads,
                       0,
                       stream,
                       to);
  REYNARD_CHECK_LAUNCH();
}

void prepare_queries(const QueryPreparation& to, cudaStream_t stream) {
  const Problem& p = to.problem;
  const int64_t heads = int64_t{p.B} * p.H;
  const auto blocks_for = [](int64_t threads) {
    return static_cast<int>((threads + kPlanThreads - 1) / kPlanThreads);
  };
  // At most: of each kind one may not be full.
  const int most = p.start || p.first_key ? kCutHeadsPerSection : kHeadsPerSection;
  const int sections = div_up(p.B * p.H, most) + 1;
  const int record_blocks = to.records ? blocks_for(heads * div_up(p.Tk, kKeysPerBlock) * 32) : 0;
  const int sum_blocks = to.records && !same_sums(p) ? blocks_for(heads * to.padded) : 0;
  tensor::launch_early(prepare_kernel,
                       sections + record_blocks + sum_blocks,
                       kPlanThreads,
                       0,
                       stream,
                       to,
                       sections,
                       record_blocks);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::attention::cuda::sm90
