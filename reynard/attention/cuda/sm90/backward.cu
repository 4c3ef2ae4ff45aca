// One block of threads per processor takes key blocks from a list; three warpgroups (two above 64
// dimensions) own 64 keys each and walk over steps of queries. Scores are transposed, S^T = K Q^T,
// so that P^T and dS^T in registers are the left operands of dV += P^T dO and dK += dS^T Q. dQ = dS
// K comes from shared memory, one step later: nobody waits for another's dS. Three warpgroups
// multiply it by turns, two half of its dimensions each. Above 128 dimensions the halves of dQ, dK
// and dV are tasks of their own, and dQ is multiplied within its step (backward_halves.cuh).
//
// A step's dQ is the sum of parts of many key blocks. They are added in global memory by the copy
// engine, or above 64 dimensions by those who multiplied them, in a fixed order, that in which key
// blocks are taken (key_block_order.h): a counter per step says whose turn it is, and whoever
// is waited for already runs.
//
// Where heads share keys, each has tasks of its own all the same, and leaves its dK and dV in f32
// for a kernel that adds up the heads of a group: tasks that walk over all of them end unevenly,
// and keep the queries of more heads in use than the L2 cache holds.
//
// Biases, lse and delta are added by the matrix unit (plan.h): P = exp2(scale S' + shift) with one
// number per 64 queries, dS = P dP'.

#include "reynard/attention/cuda/sm90/backward.h"

#include "reynard/attention/cuda/sm90/backward_ahead.cuh"
#include "reynard/attention/cuda/sm90/backward_by_step.cuh"
#include "reynard/attention/cuda/sm90/backward_config.cuh"
#include "reynard/attention/cuda/sm90/backward_delivery.cuh"
#include "reynard/attention/cuda/sm90/backward_halves.cuh"
#include "reynard/attention/cuda/sm90/backward_producer.cuh"
#include "reynard/attention/cuda/sm90/backward_quarters.cuh"
#include "reynard/attention/cuda/sm90/tensor_map.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::attention::cuda::sm90 {

namespace {

using bwd::Config;
using bwd::Params;
using bwd::Shared;

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ char raw[];
  auto& s = aligned_shared<Shared<C>>(raw);
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (threadIdx.x == 0) prepare_shared(s);
  __syncthreads();
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  if (warpgroup == 0) {
    shrink_registers<C::kProducerRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp == 0) {
      bwd::Producer<C>(p, s).run();
    } else if (warp <= bwd::kDqWarps) {
      if constexpr (C::kDelivers) {
        bwd::deliver(p, s, warp - 1);
      } else {
        bwd::keep_turns(p, s, warp - 1);
      }
    } else if (warp == bwd::kDqWarps + 1) {
      if constexpr (C::kHasHalves) bwd::load_quarters(p, s);
    }
  } else {
    grow_registers<C::kConsumerRegisters>();
    using SendingConsumer =
        std::conditional_t<C::kHasHalves, bwd::HalvesConsumer<C>, bwd::AheadConsumer<C>>;
    using Consumer = std::conditional_t<C::kDelivers, bwd::StepConsumer<C>, SendingConsumer>;
    Consumer(p, s, warpgroup - 1).run();
  }
}

// Eight neighbouring numbers in whole 16-byte accesses.
__device__ void store_eight(float* to, const float* from) {
  for (int i = 0; i < 8; i += 4) {
    *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
  }
}
template <class Scalar>
__device__ void store_eight(Scalar* to, const float* from) {
  uint4 pairs;
  pairs.x = packed(from[0], from[1], Scalar());
  pairs.y = packed(from[2], from[3], Scalar());
  pairs.z = packed(from[4], from[5], Scalar());
  pairs.w = packed(from[6], from[7], Scalar());
  *reinterpret_cast<uint4*>(to) = pairs;
}

// 64 rows and 64 dimensions of an array.
struct Patch {
  Operand to;
  int64_t b, head;
  int first_row, num_rows, first_dim, num_dims;
  float factor;
};

// A part, of which a thread holds sums_of(j), its sums of eight dimensions: through shared memory,
// so that rows are written whole.
template <class Out, class Sums>
__device__ void write_patch(const Patch& patch, const Sums& sums_of) {
  constexpr int kColumns = 64, kStride = kColumns + 4;
  __shared__ alignas(16) float rows[kQueriesPerTile * kStride];
  float* own =
      rows + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) * kStride + threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float4 sums = sums_of(j);
    *reinterpret_cast<float2*>(own + 8 * j) = {sums.x * patch.factor, sums.y * patch.factor};
    *reinterpret_cast<float2*>(own + 8 * kStride + 8 * j) = {sums.z * patch.factor,
                                                             sums.w * patch.factor};
  }
  __syncthreads();
  const Operand& to = patch.to;
  Out* out =
      static_cast<Out*>(to.data) + patch.b * to.batch + patch.head * to.head + patch.first_dim;
  for (int i = threadIdx.x; i < kQueriesPerTile * kColumns / 8; i += kWarpgroup) {
    const int row = i / (kColumns / 8), d = i % (kColumns / 8) * 8;
    if (patch.first_row + row >= patch.num_rows || patch.first_dim + d >= patch.num_dims) continue;
    store_eight(out + int64_t{patch.first_row + row} * to.time + d, rows + row * kStride + d);
  }
}

__device__ const float4* part_at(const float* parts, int64_t index) {
  return reinterpret_cast<const float4*>(parts + index * bwd::kPartFloats) + threadIdx.x;
}

// How many key blocks add to a tile of queries, of all.
__device__ int key_blocks_of(const Params& p, int tile) {
  const BlockRange blocks = p.plan.keys[tile].blocks;
  return max(blocks.last - blocks.first + 1, 0);
}

// The next part of dq for a block of threads, when all has been added to it; -1: there is none.
// Those of the pairs come in the order in which key blocks are taken, as they become whole.
template <class C>
__device__ int take_whole_part(const Params& p) {
  __shared__ int taken;
  if (threadIdx.x == 0) {
    const int parts_of_pair = p.num_steps * C::kPieces, number = atomicAdd(p.next_part, 1);
    const int place = number / parts_of_pair;
    taken = -1;
    if (place < p.task.problem.B * p.task.problem.H) {
      taken = p.plan.order[place] * parts_of_pair + number % parts_of_pair;
      const int last_turn = key_blocks_of(p, taken / C::kPieces);
      const int* turn = p.turns + taken / C::kTaskPieces;
      while (bwd::load_acquire(turn) < last_turn) __nanosleep(100);
    }
  }
  __syncthreads();
  const int part = taken;
  __syncthreads();  // before the next is taken
  return part;
}

// dq from the sums of parts, in the order of store_parts. Blocks of threads start on processors
// that have nothing left to do of the kernel before while others still run it.
template <class C, class Out>
__global__ void __launch_bounds__(kWarpgroup) dq_kernel(const Params p) {
  const Problem& problem = p.task.problem;
  for (int part; (part = take_whole_part<C>(p)) >= 0;) {
    const int tile = part / C::kPieces, head = tile / p.num_steps;
    const Patch patch = {.to = p.task.dq,
                         .b = head / problem.H,
                         .head = head % problem.H,
                         .first_row = tile % p.num_steps * kQueriesPerTile,
                         .num_rows = problem.Tq,
                         .first_dim = part % C::kPieces * 64,
                         .num_dims = problem.D,
                         .factor = problem.scale};
    const bool is_seen = key_blocks_of(p, tile) > 0;
    const float4* sums = part_at(p.dq_sums, part);
    write_patch<Out>(patch,
                     [&](int j) { return is_seen ? __ldcg(sums + j * kWarpgroup) : float4{}; });
  }
  tensor::wait_for_kernel_before();  // whoever comes next need not wait for it as well
}

// dk and dv of heads that share keys: one block of threads per part, which adds up the heads of the
// group in their order.
template <class C>
__global__ void __launch_bounds__(kWarpgroup) group_kernel(const Params p) {
  const Problem& problem = p.task.problem;
  const int group = problem.H / problem.G;
  const int64_t block = blockIdx.x / C::kHeadParts, pair = block / p.num_key_blocks;
  const int part = blockIdx.x % C::kHeadParts;  // of 64 keys, dk or dv, 64 dimensions
  const auto n = static_cast<int>(block % p.num_key_blocks);
  const bool is_dv = part / C::kPieces % 2 == 1;
  const int key_group = part / (2 * C::kPieces);
  const Patch patch = {.to = is_dv ? p.task.dv : p.task.dk,
                       .b = pair / problem.G,
                       .head = pair % problem.G,
                       .first_row = n * C::kKeys + key_group * kOwnKeys,
                       .num_rows = problem.Tk,
                       .first_dim = part % C::kPieces * 64,
                       .num_dims = problem.D,
                       .factor = is_dv ? 1 : problem.scale};
  const int64_t stride = int64_t{p.num_key_blocks} * C::kHeadParts;  // of heads
  const float4* first =
      part_at(p.head_sums, pair * group * stride + int64_t{n} * C::kHeadParts + part);
  write_patch<typename C::Scalar>(patch, [&](int j) {
    float4 sums = {};
    for (int h = 0; h < group; ++h) {
      const float4 own = first[h * stride * (bwd::kPartFloats / 4) + j * kWarpgroup];
      sums.x += own.x, sums.y += own.y, sums.z += own.z, sums.w += own.w;
    }
    return sums;
  });
}

// Where the arrays of a call lie in its scratch.
struct Layout {
  int64_t records = 0, keys = 0, tiles = 0, turns = 0, costs = 0, next_part = 0, next_task = 0;
  int64_t order = 0, taken = 0, dq_sums = 0, head_sums = 0, total = 0;

  Layout(const Problem& p, int key_groups, int pieces, int halves) {
    const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const int64_t heads = int64_t{p.B} * p.H;
    const int64_t key_blocks = heads * div_up(p.Tk, key_groups * kOwnKeys);
    const int64_t num_steps = heads * div_up(p.Tq, kQueriesPerTile), parts = num_steps * pieces;
    constexpr int64_t kPartBytes = bwd::kPartFloats * sizeof(float);
    records = padded(key_blocks * key_groups * sizeof(KeyRecord));
    keys = records + padded(num_steps * sizeof(QueryRecord));
    tiles = keys + padded(num_steps * sizeof(TileKeys));
    turns = tiles + padded(key_blocks * sizeof(TileRange));
    costs = turns + padded(num_steps * halves * sizeof(int));
    next_part = costs + padded(heads * sizeof(int));
    next_task = next_part + 256;
    order = next_task + 256;
    taken = order + padded(heads * sizeof(int));
    dq_sums = taken + padded(key_blocks * sizeof(TakenKeyBlock));
    head_sums = dq_sums + parts * kPartBytes;
    total = head_sums;
    if (p.H > p.G) total += key_blocks * key_groups * 2 * pieces * kPartBytes;
  }
};

template <class C>
int64_t scratch_bytes(const Problem& problem) {
  return Layout(problem, C::kKeyGroups, C::kPieces, C::kHalves).total;
}

template <class C>
void launch(const BackwardTask& task, char* scratch, int num_processors, cudaStream_t stream) {
  const Problem& problem = task.problem;
  const Layout layout(problem, C::kKeyGroups, C::kPieces, C::kHalves);
  const auto queries = [&](const Operand& x) {
    return tensor_map(x, problem.B, problem.Tq, problem.H, problem.D, kQueriesPerTile);
  };
  const auto keys = [&](const Operand& x, int rows) {
    return tensor_map(x, problem.B, problem.Tk, problem.G, problem.D, rows);
  };
  Params p;
  p.q = queries(problem.q), p.dout = queries(task.dout);
  p.k = keys(problem.k, C::kKeys), p.v = keys(problem.v, C::kKeys);
  if constexpr (C::kRunsAhead) {
    p.dk = keys(task.dk, kOwnKeys), p.dv = keys(task.dv, kOwnKeys);
  }
  p.task = task;
  auto* biases = reinterpret_cast<KeyRecord*>(scratch);
  auto* records = reinterpret_cast<QueryRecord*>(scratch + layout.records);
  p.biases = biases;
  p.records = records;
  p.plan = {reinterpret_cast<TileKeys*>(scratch + layout.keys),
            reinterpret_cast<TileRange*>(scratch + layout.tiles),
            reinterpret_cast<int*>(scratch + layout.costs),
            reinterpret_cast<int*>(scratch + layout.order),
            reinterpret_cast<TakenKeyBlock*>(scratch + layout.taken),
            reinterpret_cast<int*>(scratch + layout.next_task)};
  p.turns = reinterpret_cast<int*>(scratch + layout.turns);
  p.next_part = reinterpret_cast<int*>(scratch + layout.next_part);
  p.dq_sums = reinterpret_cast<float*>(scratch + layout.dq_sums);
  const bool grouped = problem.H > problem.G;
  p.head_sums = grouped ? reinterpret_cast<float*>(scratch + layout.head_sums) : nullptr;
  p.num_steps = div_up(problem.Tq, kQueriesPerTile);
  p.num_key_blocks = div_up(problem.Tk, C::kKeys);
  p.num_tasks = problem.B * problem.H * p.num_key_blocks * C::kHalves;
  cudaMemsetAsync(p.turns, 0, layout.next_task - layout.turns, stream);  // to next_part
  const int blocks = min(num_processors, p.num_tasks);
  // Of the 50 MB of the L2 cache what is left beside keys, values and results; queries and
  // gradients of 16 bits, sums of 32.
  constexpr int kBytesInCache = 24 << 20, kTileBytes = kQueriesPerTile * C::kDim * (2 + 2 + 4);
  prepare_backward({.task = task,
                    .block_keys = C::kKeys,
                    .processors = div_up(blocks, C::kHalves),  // a half of a key block each
                    .tiles_in_cache = kBytesInCache / kTileBytes,
                    .plan = p.plan,
                    .biases = biases,
                    .records = records},
                   stream);
  constexpr int kBytes = sizeof(Shared<C>) + kAlignment;
  cudaFuncSetAttribute(backward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  tensor::launch_early(backward_kernel<C>, blocks, C::kThreads, kBytes, stream, p);
  REYNARD_CHECK_LAUNCH();
  const auto write_dq =
      task.dq.element == Element::kFloat ? &dq_kernel<C, float> : &dq_kernel<C, typename C::Scalar>;
  constexpr int kBlocksPerProcessor = 12;  // as many as fit
  const int parts = problem.B * problem.H * p.num_steps * C::kPieces;
  const int dq_blocks = min(parts, num_processors * kBlocksPerProcessor);
  tensor::launch_early(write_dq, dq_blocks, kWarpgroup, 0, stream, p);
  REYNARD_CHECK_LAUNCH();
  if (!grouped) return;
  const unsigned head_parts = problem.B * problem.G * p.num_key_blocks * C::kHeadParts;
  group_kernel<C><<<head_parts, kWarpgroup, 0, stream>>>(p);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

bool takes_backward(const BackwardTask& task) {
  const Problem& p = task.problem;
  const auto tileable = [&](const Operand& x) { return is_tileable(x, p.D); };
  return p.D <= 256 && p.Tk > 0 && p.scale >= kLeastScale && tileable(p.q) && tileable(p.k) &&
         tileable(p.v) && tileable(task.dout);
}

int64_t backward_scratch_bytes(const Problem& problem) {
  if (problem.D <= 64) return scratch_bytes<Config<64, __half>>(problem);
  if (problem.D <= 128) return scratch_bytes<Config<128, __half>>(problem);
  return scratch_bytes<Config<256, __half>>(problem);
}

void backward(const BackwardTask& task, void* scratch, int num_processors, cudaStream_t stream) {
  const bool half = task.problem.q.element == Element::kHalf;
  auto run = half ? launch<Config<256, __half>> : launch<Config<256, __nv_bfloat16>>;
  if (task.problem.D <= 64) {
    run = half ? launch<Config<64, __half>> : launch<Config<64, __nv_bfloat16>>;
  } else if (task.problem.D <= 128) {
    run = half ? launch<Config<128, __half>> : launch<Config<128, __nv_bfloat16>>;
  }
  run(task, static_cast<char*>(scratch), num_processors, stream);
}

}  // namespace reynard::attention::cuda::sm90
