#include "reynard/attention/cpu/attention_cpu.h"

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/pair_tasks.h"
#include "reynard/attention/cpu/prepared_problem.h"
#include "reynard/attention/cpu/scratch.h"
#include "reynard/attention/cpu/visibility.h"
#include "reynard/attention/operand_of.h"
#include "reynard/tensor/parallel.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace reynard::attention::cpu {

namespace {

// Bytes of each array of what the query blocks of `num_slots` pairs need.
struct SlotBytes {
  int64_t queries, limits, dq, rows;

  SlotBytes(const PreparedProblem& prepared, int64_t num_slots) {
    const KernelTable& kernels = *prepared.kernels;
    const Problem& p = prepared.problem;
    const int64_t blocks = num_slots * (p.H / p.G) * prepared.num_query_blocks;
    const int64_t num_queries = blocks * kernels.queries_per_block;
    queries = Scratch::padded(blocks * kernels.query_block_bytes(p.D));
    limits = Scratch::padded(blocks * kernels.query_limits_bytes);
    dq = Scratch::padded(num_queries * kernels.padded_head_dim(p.D) *
                         static_cast<int64_t>(sizeof(float)));
    rows = Scratch::padded(num_queries * static_cast<int64_t>(sizeof(double)));
  }
  int64_t total() const { return 4 * queries + limits + dq + rows; }
};

void point_to_scratch(BackwardParams& params, const SlotBytes& bytes, Scratch& scratch) {
  params.query_lanes = scratch.take(bytes.queries);
  params.query_rows = scratch.take(bytes.queries);
  params.dout_lanes = scratch.take(bytes.queries);
  params.dout_rows = scratch.take(bytes.queries);
  params.query_limits = scratch.take(bytes.limits);
  params.dq_sums = reinterpret_cast<float*>(scratch.take(bytes.dq));
  params.row_sums = reinterpret_cast<double*>(scratch.take(bytes.rows));
}

// How many query blocks read each key block of each pair.
//   -> (B * G, num_key_blocks)
std::vector<int64_t> readers_of_key_blocks(const PreparedProblem& prepared) {
  const Problem& p = prepared.problem;
  const int64_t keys = prepared.kernels->keys_per_block, group = p.H / p.G;
  const int64_t stride = prepared.num_key_blocks + 1;
  std::vector<int64_t> changes(p.B * p.G * stride);  // +1 where a range begins, -1 after its end
  for (int64_t x = 0; x < static_cast<int64_t>(prepared.ranges.size()); ++x) {
    const KeyRange range = prepared.ranges[x];
    if (range.empty()) continue;
    const int64_t pair = x / prepared.num_query_blocks / group;
    ++changes[pair * stride + range.begin / keys];
    --changes[pair * stride + div_up(range.end, keys)];
  }
  std::vector<int64_t> readers(p.B * p.G * prepared.num_key_blocks);
  for (int64_t pair = 0; pair < p.B * p.G; ++pair) {
    int64_t open = 0;
    for (int64_t block = 0; block < prepared.num_key_blocks; ++block) {
      open += changes[pair * stride + block];
      readers[pair * prepared.num_key_blocks + block] = open;
    }
  }
  return readers;
}

// Pairs that are worked on at once: one a worker, but no more than its share of the last-level
// cache and the kept scratch hold, for each key block of a pair goes through all of its query
// blocks.
int64_t num_slots_for(const PreparedProblem& prepared, int64_t num_workers) {
  constexpr int64_t kCachePerWorker = int64_t{16} << 20;
  const int64_t room = std::min(num_workers * kCachePerWorker, Scratch::kKeptBytes);
  const int64_t most = std::min(num_workers, prepared.problem.B * prepared.problem.G);
  return std::clamp<int64_t>(room / SlotBytes(prepared, 1).total(), 1, most);
}

void run_key_blocks(const PreparedProblem& prepared, BackwardParams& params) {
  const KernelTable& kernels = *prepared.kernels;
  std::vector<int64_t> readers = readers_of_key_blocks(prepared);
  if (readers.empty()) return;
  const int64_t num_workers = tensor::num_workers(static_cast<int64_t>(readers.size()));
  const int64_t num_slots = num_slots_for(prepared, num_workers);
  const SlotBytes bytes(prepared, num_slots);
  const int64_t worker_bytes = Scratch::padded(kernels.backward_scratch_bytes(prepared.problem.D));
  Scratch scratch(bytes.total() + worker_bytes * num_workers);
  point_to_scratch(params, bytes, scratch);
  char* const workers = scratch.take(worker_bytes * num_workers);

  PairTasks tasks(std::move(readers), prepared.num_key_blocks, num_slots, num_workers);
  tensor::run_tasks(tasks.count(), [&](int64_t, int64_t worker) {
    const PairTask task = tasks.take(worker);
    kernels.backward(params, {task.pair, task.index, task.slot}, workers + worker * worker_bytes);
    tasks.finish(task);
  });
}

void zero(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors) {
    if (x.defined()) x.zero_();
  }
}

}  // namespace

BackwardPart backward_part(const PartArguments& arguments,
                           const at::Tensor& dout,
                           const at::Tensor& lse,
                           const at::Tensor& delta,
                           at::ScalarType dq_dtype) {
  const bool has_bias = arguments.part.sums.defined();
  BackwardPart result = empty_gradients(arguments, dq_dtype);
  if (arguments.q.numel() == 0) {
    zero({result.dk, result.dv, result.dsums});
    return result;
  }
  const PreparedProblem prepared = prepare(arguments);
  if (std::ranges::any_of(prepared.ranges, &KeyRange::empty)) zero({result.dq, result.dquery_sums});
  const at::Tensor whole_lse = lse.contiguous(), whole_delta = delta.contiguous();
  std::vector<int32_t> turns(prepared.ranges.size(), kNotPacked);
  BackwardParams params;
  params.problem = prepared.problem;
  params.dout = operand_of(dout);
  params.lse = whole_lse.const_data_ptr<float>();
  params.delta = whole_delta.const_data_ptr<double>();
  params.dq = operand_of(result.dq);
  params.dk = operand_of(result.dk);
  params.dv = operand_of(result.dv);
  params.dquery_sums = has_bias ? result.dquery_sums.data_ptr<double>() : nullptr;
  params.dkey_sums = has_bias ? result.dsums.data_ptr<double>() : nullptr;
  params.turns = turns.data();
  run_key_blocks(prepared, params);
  return result;
}

}  // namespace reynard::attention::cpu
