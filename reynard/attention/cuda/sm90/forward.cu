// One block of threads per processor takes query blocks from a list (query_block_order.h). One
// thread takes them, one loads tiles with the copy engine; each warpgroup of the others owns 64
// queries: their scores, weights and sums stay in registers. Key blocks go from the diagonal to the
// past.
//
// The bias of the keys is added by the matrix unit (plan.h); at the edges, where a query's own keys
// lie, it is added in registers from sums of 48 bits, since a logit near 0 must not pass through a
// score of hundreds. What a row subtracts is raised only when a score, or above D = 64 a lane's sum
// of weights, exceeds it by 2^8, so that sums are seldom rescaled.

#include "reynard/attention/cuda/sm90/forward.h"

#include "reynard/attention/cuda/sm90/forward_config.cuh"
#include "reynard/attention/cuda/sm90/forward_consumer.cuh"
#include "reynard/attention/cuda/sm90/forward_producer.cuh"
#include "reynard/attention/cuda/sm90/tensor_map.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::attention::cuda::sm90 {

namespace {

using fwd::Config;
using fwd::Params;
using fwd::Shared;

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ char raw[];
  auto& s = aligned_shared<Shared<C>>(raw);
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (threadIdx.x == 0) prepare_shared(s);
  __syncthreads();
  tensor::wait_for_kernel_before();
  if (warpgroup == 0) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) fwd::Producer<C>(p, s).run();
    if (threadIdx.x == 32) fwd::take_tasks(p, s);
  } else {
    grow_registers<C::kConsumerRegisters>();
    fwd::Consumer<C>(p, s, warpgroup - 1).run();
  }
}

// Where the arrays of a call lie in its scratch.
struct Layout {
  int64_t query_sums = 0, ranges = 0, tasks = 0, next_task = 0, total = 0;

  explicit Layout(const Problem& p) {
    const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const int64_t heads = int64_t{p.B} * p.H, num_tasks = heads * div_up(p.Tq, 128);
    const int64_t rows = heads * (p.Tq + 64 * QueryTask::kMostGroups);  // at most
    query_sums = p.key_sums ? padded(heads * div_up(p.Tk, kKeysPerBlock) * sizeof(BiasRecord)) : 0;
    ranges = query_sums + (p.key_sums ? padded(rows * sizeof(SplitSum)) : 0);
    tasks = ranges + padded(num_tasks * sizeof(BlockRange));
    next_task = tasks + padded(num_tasks * sizeof(QueryTask));
    total = next_task + 256;
  }
};

template <class C>
void launch(const ForwardTask& task, char* scratch, int num_processors, cudaStream_t stream) {
  const Problem& problem = task.problem;
  const Layout layout(problem);
  Params p;
  p.q = tensor_map(problem.q, problem.B, problem.Tq, problem.H, problem.D, C::kRows);
  p.k = tensor_map(problem.k, problem.B, problem.Tk, problem.G, problem.D, C::kKeys);
  p.v = tensor_map(problem.v, problem.B, problem.Tk, problem.G, problem.D, C::kKeys);
  if (task.out.element != Element::kFloat) {
    p.out = tensor_map(task.out, problem.B, problem.Tq, problem.H, problem.D, 64);
  }
  p.task = task;
  p.plan = {reinterpret_cast<BlockRange*>(scratch + layout.ranges),
            reinterpret_cast<QueryTask*>(scratch + layout.tasks),
            reinterpret_cast<int*>(scratch + layout.next_task)};
  auto* records = reinterpret_cast<BiasRecord*>(scratch);
  auto* query_sums = reinterpret_cast<SplitSum*>(scratch + layout.query_sums);
  p.records = records, p.query_sums = query_sums;
  p.num_query_blocks = div_up(problem.Tq, C::kRows);
  p.num_records = div_up(problem.Tk, kKeysPerBlock);
  p.num_tasks = problem.B * problem.H * p.num_query_blocks;
  const int blocks = min(num_processors, p.num_tasks);
  prepare_queries({.problem = problem,
                   .rows = C::kRows,
                   .keys = C::kKeys,
                   .processors = blocks,
                   .plan = p.plan,
                   .records = C::kGated ? records : nullptr,
                   .query_sums = query_sums,
                   .padded = p.num_query_blocks * C::kRows},
                  stream);
  constexpr int kBytes = sizeof(Shared<C>) + kAlignment;
  cudaFuncSetAttribute(forward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  tensor::launch_early(forward_kernel<C>, blocks, C::kThreads, kBytes, stream, p);
  REYNARD_CHECK_LAUNCH();
}

template <int kDim, class Scalar>
void launch_variant(const ForwardTask& task, char* scratch, int processors, cudaStream_t stream) {
  const auto run = task.problem.key_sums ? launch<Config<kDim, Scalar, true>>
                                         : launch<Config<kDim, Scalar, false>>;
  run(task, scratch, processors, stream);
}

}  // namespace

bool takes_forward(const ForwardTask& task) {
  const Problem& p = task.problem;
  const auto tileable = [&](const Operand& x) { return is_tileable(x, p.D); };
  const bool out = task.out.element == Element::kFloat || tileable(task.out);
  return task.out.data && p.D <= 256 && p.Tk > 0 && p.scale >= kLeastScale && tileable(p.q) &&
         tileable(p.k) && tileable(p.v) && out;
}

int64_t forward_scratch_bytes(const Problem& problem) {
  return Layout(problem).total;
}

void forward(const ForwardTask& task, void* scratch, int num_processors, cudaStream_t stream) {
  auto* bytes = static_cast<char*>(scratch);
  const auto with = [&]<class Scalar>(Scalar) {
    const int D = task.problem.D;
    const auto run = D <= 64    ? launch_variant<64, Scalar>
                     : D <= 128 ? launch_variant<128, Scalar>
                                : launch_variant<256, Scalar>;
    run(task, bytes, num_processors, stream);
  };
  if (task.problem.q.element == Element::kHalf) {
    with(__half());
  } else {
    with(__nv_bfloat16());
  }
}

}  // namespace reynard::attention::cuda::sm90
