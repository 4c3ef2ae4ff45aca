#include "reynard/attention/cpu/attention_cpu.h"

#include "reynard/attention/cpu/decode.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/key_packer.h"
#include "reynard/attention/cpu/page_reader.h"
#include "reynard/attention/cpu/page_writer.h"
#include "reynard/attention/cpu/pair_tasks.h"
#include "reynard/attention/cpu/prepared_problem.h"
#include "reynard/attention/cpu/scratch.h"
#include "reynard/attention/cpu/visibility.h"
#include "reynard/attention/operand_of.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace reynard::attention::cpu {

namespace {

// The query blocks of the forward pass, numbered (b, h, block): those of each (b, g) pair together,
// most expensive first.
struct QueryBlockTasks {
  std::vector<int64_t> order, costs;
  int64_t per_pair = 0;

  explicit QueryBlockTasks(const PreparedProblem& prepared)
      : order(prepared.ranges.size()),
        per_pair(prepared.problem.H / prepared.problem.G * prepared.num_query_blocks) {
    const auto cost = [&](int64_t x) {
      return std::max<int64_t>(0, prepared.ranges[x].end - prepared.ranges[x].begin);
    };
    std::iota(order.begin(), order.end(), 0);
    for (auto first = order.begin(); first != order.end(); first += per_pair) {
      std::stable_sort(
          first, first + per_pair, [&](int64_t a, int64_t b) { return cost(a) > cost(b); });
    }
    for (const int64_t x : order) costs.push_back(cost(x));
  }
};

ForwardPart nothing_seen(const at::Tensor& q, at::ScalarType out_dtype) {
  const at::Tensor lse = at::full({q.size(0), q.size(2), q.size(1)},
                                  -std::numeric_limits<double>::infinity(),
                                  q.options().dtype(at::kFloat));
  return {at::zeros(q.sizes(), q.options().dtype(out_dtype)), lse};
}

// out may be undefined: then only lse is computed, and values are not read.
void run_forward(const PreparedProblem& prepared, const at::Tensor& out, const at::Tensor& lse) {
  const Problem& p = prepared.problem;
  const KernelTable& kernels = *prepared.kernels;
  const int64_t num_tasks = static_cast<int64_t>(prepared.ranges.size());
  const int64_t packed_bytes =
      Scratch::padded(p.B * p.G * prepared.num_key_blocks * kernels.key_block_bytes(p.D));
  const int64_t worker_bytes = Scratch::padded(kernels.forward_scratch_bytes(p.D));
  const int64_t num_workers = tensor::num_workers(num_tasks);
  Scratch scratch(packed_bytes * (out.defined() ? 2 : 1) + worker_bytes * num_workers);
  ForwardParams params;
  params.problem = p;
  params.lse = lse.data_ptr<float>();
  params.packed.num_pairs = p.B * p.G;
  params.packed.key_rows = scratch.take(packed_bytes);
  if (out.defined()) {
    params.out = operand_of(out);
    params.packed.value_columns = scratch.take(packed_bytes);
  }
  KeyPacker keys(prepared, params.packed);

  const QueryBlockTasks blocks(prepared);
  PairTasks tasks(blocks.costs, blocks.per_pair, num_workers, num_workers);
  char* const workers = scratch.take(worker_bytes * num_workers);
  tensor::run_tasks(num_tasks, [&](int64_t, int64_t worker) {
    const PairTask task = tasks.take(worker);
    const int64_t number = blocks.order[task.pair * blocks.per_pair + task.index];
    const int64_t head = number / prepared.num_query_blocks;
    keys.pack(task.pair, prepared.ranges[number]);
    kernels.forward(params,
                    head / p.H,
                    head % p.H,
                    number % prepared.num_query_blocks,
                    workers + worker * worker_bytes);
    tasks.finish(task);
  });
}

}  // namespace

ForwardPart forward_part(const PartArguments& arguments, at::ScalarType out_dtype) {
  const at::Tensor& q = arguments.q;
  if (q.numel() == 0) return nothing_seen(q, out_dtype);
  const ForwardPart result = {at::empty(q.sizes(), q.options().dtype(out_dtype)), empty_lse(q)};
  run_forward(prepare(arguments), result.out, result.lse);
  return result;
}

PartFloors floors_of_part(const PartArguments& arguments, double /*log_tolerance*/) {
  if (arguments.q.numel() == 0) return {.lse = nothing_seen(arguments.q, at::kFloat).lse};
  const at::Tensor lse = empty_lse(arguments.q);
  PartArguments nearest = arguments;
  nearest.start = nearest_starts(arguments.q, arguments.part);
  run_forward(prepare(nearest), at::Tensor(), lse);
  return {.lse = lse};
}

namespace {

// While the library is loaded.
const bool kRegistered = [] {
  static const PartKernels table = {.forward = forward_part,
                                    .floors = floors_of_part,
                                    .forward_tight = forward_tight,
                                    .backward = backward_part,
                                    .row_products = row_products,
                                    .pruned_starts = pruned_starts,
                                    .gate_sums = gate_sums,
                                    .gate_sums_backward = gate_sums_backward,
                                    .decode = decode,
                                    .write_pages = write_pages,
                                    .read_pages = read_pages};
  register_part_kernels(at::kCPU, table);
  return true;
}();

}  // namespace

}  // namespace reynard::attention::cpu
