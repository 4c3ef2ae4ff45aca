#include "reynard/attention/cpu/attention_cpu.h"

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/key_packer.h"
#include "reynard/attention/cpu/pair_tasks.h"
#include "reynard/attention/cpu/prepared_problem.h"
#include "reynard/attention/cpu/scratch.h"
#include "reynard/attention/cpu/tight_rule.h"
#include "reynard/attention/cpu/visibility.h"
#include "reynard/attention/operand_of.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace reynard::attention::cpu {

namespace {

// The two steps of the kernels for the queries that share one entry of start.
class TightForward {
 public:
  // `nearest`: with start where the nearest keys begin.
  TightForward(const PreparedProblem& nearest, const TightRule& rule, const ForwardParams& params)
      : nearest_(nearest),
        rule_(rule),
        params_(params),
        rest_(params),
        keys_(nearest, params_.packed) {
    rest_.problem.start = rule.starts.const_data_ptr<int32_t>();
  }

  // Scratch that one thread needs.
  static int64_t worker_bytes(const PreparedProblem& prepared) {
    return blocks_per_start(prepared) * scratch_bytes(prepared);
  }

  // Queries [128 m, 128 m + 128) of head h.
  void run(int64_t b, int64_t h, int64_t m, char* scratch) {
    const int64_t first = m * blocks_per_start(nearest_);
    const int64_t last = std::min(first + blocks_per_start(nearest_), nearest_.num_query_blocks);
    const auto scratch_of = [&](int64_t block) {
      return scratch + (block - first) * scratch_bytes(nearest_);
    };
    for (int64_t block = first; block < last; ++block) {
      add(params_, b, h, block, nearest_keys(b, h, block), scratch_of(block));
    }
    const Problem& p = params_.problem;
    rule_.find_start(b, h, m, params_.lse + (b * p.H + h) * p.Tq + m * kQueriesPerStart);
    for (int64_t block = first; block < last; ++block) {
      finish(b, h, block, scratch_of(block));
    }
  }

 private:
  static int64_t blocks_per_start(const PreparedProblem& prepared) {
    return kQueriesPerStart / prepared.kernels->queries_per_block;
  }
  static int64_t scratch_bytes(const PreparedProblem& prepared) {
    return Scratch::padded(prepared.kernels->forward_scratch_bytes(prepared.problem.D));
  }
  int64_t pair_of(int64_t b, int64_t h) const {
    const Problem& p = params_.problem;
    return b * p.G + h / (p.H / p.G);
  }
  KeyRange nearest_keys(int64_t b, int64_t h, int64_t block) const {
    return nearest_.ranges[(b * params_.problem.H + h) * nearest_.num_query_blocks + block];
  }

  void add(const ForwardParams& params,
           int64_t b,
           int64_t h,
           int64_t block,
           KeyRange keys,
           char* scratch) {
    keys_.pack(pair_of(b, h), keys);
    nearest_.kernels->forward_nearest(params, b, h, block, keys, scratch);
  }

  void finish(int64_t b, int64_t h, int64_t block, char* scratch) {
    const int64_t first = block * nearest_.kernels->queries_per_block;
    const int64_t end = std::min(first + nearest_.kernels->queries_per_block, params_.problem.Tq);
    const KeyRange nearest = nearest_keys(b, h, block);
    KeyRange keys = keys_of_queries(rest_.problem, b, h, first, end);
    if (keys.begin > nearest.begin) {
      // Some of the nearest keys are pruned: once more without them.
      add(rest_, b, h, block, keys, scratch);
      keys = {};
    } else {
      keys.end = std::min(keys.end, nearest.begin);
      keys_.pack(pair_of(b, h), keys);
    }
    nearest_.kernels->forward_rest(rest_, b, h, block, keys, scratch);
  }

  const PreparedProblem& nearest_;
  const TightRule& rule_;
  const ForwardParams& params_;
  ForwardParams rest_;
  KeyPacker keys_;
};

}  // namespace

PrunedForwardPart forward_tight(const PartArguments& arguments,
                                const at::Tensor& logit_bound,
                                const AttentionOptions& options) {
  const at::Tensor& q = arguments.q;
  const PreparedProblem prepared = prepare(arguments);
  const Problem& p = prepared.problem;
  const TightRule rule = tight_rule(q, arguments.query_sums, arguments.part, logit_bound, options);
  const PrunedForwardPart result = {at::empty(q.sizes(), q.options()), empty_lse(q), rule.starts};

  ForwardParams params;
  params.problem = p;
  params.out = operand_of(result.out);
  params.lse = result.lse.data_ptr<float>();
  params.packed.num_pairs = p.B * p.G;
  const int64_t packed_bytes =
      Scratch::padded(p.B * p.G * prepared.num_key_blocks * prepared.kernels->key_block_bytes(p.D));
  const int64_t per_head = div_up(p.Tq, kQueriesPerStart), num_tasks = p.B * p.H * per_head;
  const int64_t num_workers = tensor::num_workers(num_tasks);
  const int64_t worker_bytes = TightForward::worker_bytes(prepared);
  Scratch scratch(2 * packed_bytes + worker_bytes * num_workers);
  params.packed.key_rows = scratch.take(packed_bytes);
  params.packed.value_columns = scratch.take(packed_bytes);
  char* const workers = scratch.take(worker_bytes * num_workers);
  TightForward forward(prepared, rule, params);
  // Within a head the last queries first: they see most.
  std::vector<int64_t> costs(num_tasks);
  for (int64_t task = 0; task < num_tasks; ++task) costs[task] = per_head - task % per_head;
  const int64_t per_pair = p.H / p.G * per_head;
  PairTasks tasks(std::move(costs), per_pair, num_workers, num_workers);
  tensor::run_tasks(num_tasks, [&](int64_t, int64_t worker) {
    const PairTask task = tasks.take(worker);
    const int64_t number = task.pair * per_pair + task.index, head = number / per_head;
    forward.run(
        head / p.H, head % p.H, per_head - 1 - number % per_head, workers + worker * worker_bytes);
    tasks.finish(task);
  });
  return result;
}

}  // namespace reynard::attention::cpu
