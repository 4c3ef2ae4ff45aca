#include "reynard/attention/cpu/attention_cpu.h"

#include "reynard/attention/cpu/decode.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/page_writer.h"
#include "reynard/attention/cpu/prepared_problem.h"
#include "reynard/attention/cpu/scratch.h"
#include "reynard/attention/cpu/visibility.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <vector>

namespace reynard::attention::cpu {

namespace {

// Task numbers, most expensive first; equal costs keep their order.
std::vector<int64_t> by_falling_cost(const std::vector<int64_t>& costs) {
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
  return order;
}

// The query blocks of the forward pass, numbered (b, h, block): (b, g) pairs with most work first,
// one after the other so that the keys of one stay in the caches, and within a pair the most
// expensive blocks first.
std::vector<int64_t> forward_order(const PreparedProblem& prepared) {
  const int64_t per_pair = prepared.problem.H / prepared.problem.G * prepared.num_query_blocks;
  std::vector<int64_t> costs(prepared.ranges.size());
  std::vector<int64_t> pair_costs(costs.size() / per_pair);
  for (int64_t x = 0; x < static_cast<int64_t>(costs.size()); ++x) {
    costs[x] = std::max<int64_t>(0, prepared.ranges[x].end - prepared.ranges[x].begin);
    pair_costs[x / per_pair] += costs[x];
  }
  std::vector<int64_t> order = by_falling_cost(costs);
  const std::vector<int64_t> pairs = by_falling_cost(pair_costs);
  std::vector<int64_t> rank(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) rank[pairs[i]] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rank[a / per_pair] < rank[b / per_pair];
  });
  return order;
}

// How many query blocks read each key block of each pair: what none reads is not even packed.
//   -> (B * G, number of key blocks)
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

void pack_keys(const PreparedProblem& prepared,
               const std::vector<int64_t>& readers,
               const PackedKeys& packed) {
  tensor::run_tasks(packed.num_pairs * prepared.num_key_blocks, [&](int64_t task, int64_t) {
    const int64_t pair = packed.first_pair + task / prepared.num_key_blocks;
    const int64_t block = task % prepared.num_key_blocks;
    if (readers[pair * prepared.num_key_blocks + block]) {
      prepared.kernels->pack_keys(prepared.problem, packed, pair, block);
    }
  });
}

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
    params.out = operand(out);
    params.packed.value_columns = scratch.take(packed_bytes);
  }
  pack_keys(prepared, readers_of_key_blocks(prepared), params.packed);

  const std::vector<int64_t> order = forward_order(prepared);
  char* const workers = scratch.take(worker_bytes * num_workers);
  tensor::run_tasks(num_tasks, [&](int64_t task, int64_t worker) {
    const int64_t head = order[task] / prepared.num_query_blocks;
    kernels.forward(params,
                    head / p.H,
                    head % p.H,
                    order[task] % prepared.num_query_blocks,
                    workers + worker * worker_bytes);
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

int64_t query_blocks_of_pair(const PreparedProblem& prepared) {
  return prepared.problem.H / prepared.problem.G * prepared.num_query_blocks;
}

// Bytes of each array that a wave of (b, g) pairs needs.
struct WaveBytes {
  int64_t keys, queries, limits, dq, rows, turns;

  WaveBytes(const PreparedProblem& prepared, int64_t num_pairs) {
    const KernelTable& kernels = *prepared.kernels;
    const int64_t D = prepared.problem.D;
    const int64_t blocks = num_pairs * query_blocks_of_pair(prepared);
    keys = Scratch::padded(num_pairs * prepared.num_key_blocks * kernels.key_block_bytes(D));
    queries = Scratch::padded(blocks * kernels.query_block_bytes(D));
    limits = Scratch::padded(blocks * kernels.query_limits_bytes);
    dq = Scratch::padded(blocks * kernels.queries_per_block * kernels.padded_head_dim(D) * 4);
    rows = Scratch::padded(blocks * kernels.queries_per_block * 8);
    turns = Scratch::padded(blocks * 4);
  }
  int64_t total() const { return 3 * keys + 4 * queries + limits + dq + rows + turns; }
};

void point_to_scratch(BackwardParams& params, const WaveBytes& bytes, Scratch& scratch) {
  params.packed.key_rows = scratch.take(bytes.keys);
  params.packed.key_columns = scratch.take(bytes.keys);
  params.packed.value_rows = scratch.take(bytes.keys);
  params.query_lanes = scratch.take(bytes.queries);
  params.query_rows = scratch.take(bytes.queries);
  params.dout_lanes = scratch.take(bytes.queries);
  params.dout_rows = scratch.take(bytes.queries);
  params.query_limits = scratch.take(bytes.limits);
  params.dq_sums = reinterpret_cast<float*>(scratch.take(bytes.dq));
  params.row_sums = reinterpret_cast<double*>(scratch.take(bytes.rows));
  params.turns = reinterpret_cast<int32_t*>(scratch.take(bytes.turns));
}

// The key blocks of a wave, those of a pair in ascending order. A worker stays with its pair, whose
// sums its caches hold, then begins the most expensive one that nobody has, and at the end helps
// where most is left.
class KeyBlockTasks {
 public:
  struct Task {
    int64_t pair = 0, block = 0;
  };

  // readers (B * G, num_blocks): the tiles of each key block.
  KeyBlockTasks(const PackedKeys& packed,
                const std::vector<int64_t>& readers,
                int64_t num_blocks,
                int64_t num_workers)
      : readers_(readers.data() + packed.first_pair * num_blocks),
        num_blocks_(num_blocks),
        next_(packed.num_pairs),
        left_(packed.num_pairs),
        pair_of_(num_workers, -1) {
    for (int64_t pair = 0; pair < packed.num_pairs; ++pair) {
      const int64_t* of_pair = readers_ + pair * num_blocks;
      left_[pair] = std::accumulate(of_pair, of_pair + num_blocks, int64_t{0});
    }
    order_ = by_falling_cost(left_);
  }

  // One of those that are left; pairs are counted from the first of the wave.
  Task take(int64_t worker) {
    const std::scoped_lock lock(mutex_);
    int64_t& pair = pair_of_[worker];
    if (pair < 0 || next_[pair] == num_blocks_) pair = next_pair();
    const int64_t block = next_[pair]++;
    left_[pair] -= readers_[pair * num_blocks_ + block];
    return {pair, block};
  }

 private:
  int64_t next_pair() {
    if (num_begun_ < order_.size()) return order_[num_begun_++];
    int64_t most = -1;
    for (int64_t pair = 0; pair < static_cast<int64_t>(next_.size()); ++pair) {
      if (next_[pair] < num_blocks_ && (most < 0 || left_[pair] > left_[most])) most = pair;
    }
    return most;
  }

  std::mutex mutex_;
  const int64_t* readers_;
  int64_t num_blocks_;
  std::vector<int64_t> next_;     // block of each pair
  std::vector<int64_t> left_;     // tiles of each pair
  std::vector<int64_t> order_;    // pairs, most expensive first
  size_t num_begun_ = 0;          // of them
  std::vector<int64_t> pair_of_;  // each worker, or -1
};

void run_wave(const PreparedProblem& prepared,
              const std::vector<int64_t>& readers,
              const BackwardParams& params,
              char* workers,
              int64_t worker_bytes) {
  const Problem& p = prepared.problem;
  const KernelTable& kernels = *prepared.kernels;
  const int64_t per_pair = query_blocks_of_pair(prepared), group = p.H / p.G;
  pack_keys(prepared, readers, params.packed);
  tensor::run_tasks(params.packed.num_pairs * per_pair, [&](int64_t task, int64_t) {
    const int64_t pair = params.packed.first_pair + task / per_pair;
    const int64_t head = pair * group + task % per_pair / prepared.num_query_blocks;
    kernels.pack_queries(params, head / p.H, head % p.H, task % prepared.num_query_blocks);
  });
  const int64_t num_tasks = params.packed.num_pairs * prepared.num_key_blocks;
  KeyBlockTasks tasks(
      params.packed, readers, prepared.num_key_blocks, tensor::num_workers(num_tasks));
  tensor::run_tasks(num_tasks, [&](int64_t, int64_t worker) {
    const KeyBlockTasks::Task task = tasks.take(worker);
    kernels.backward(
        params, params.packed.first_pair + task.pair, task.block, workers + worker * worker_bytes);
  });
}

BackwardPart empty_gradients(const PartArguments& arguments, at::ScalarType dq_dtype) {
  const at::Tensor& q = arguments.q;
  const KeyPart& part = arguments.part;
  BackwardPart result;
  result.dq = at::empty(q.sizes(), q.options().dtype(dq_dtype));
  result.dk = at::empty(part.k.sizes(), q.options());
  result.dv = at::empty(part.v.sizes(), q.options());
  if (part.sums.defined()) {
    const auto f64 = q.options().dtype(at::kDouble);
    result.dquery_sums = at::empty({q.size(0), q.size(2), q.size(1)}, f64);
    result.dsums = at::empty({q.size(0), q.size(2), part.k.size(1)}, f64);
  }
  return result;
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
    for (at::Tensor* x : {&result.dk, &result.dv, &result.dsums}) {
      if (x->defined()) x->zero_();
    }
    return result;
  }
  const PreparedProblem prepared = prepare(arguments);
  const Problem& p = prepared.problem;
  const at::Tensor whole_lse = lse.contiguous(), whole_delta = delta.contiguous();
  BackwardParams params;
  params.problem = p;
  params.dout = operand(dout);
  params.lse = whole_lse.const_data_ptr<float>();
  params.delta = whole_delta.const_data_ptr<double>();
  params.dq = operand(result.dq);
  params.dk = operand(result.dk);
  params.dv = operand(result.dv);
  params.dquery_sums = has_bias ? result.dquery_sums.data_ptr<double>() : nullptr;
  params.dkey_sums = has_bias ? result.dsums.data_ptr<double>() : nullptr;

  // Pairs that are worked on together: as many as the kept scratch holds.
  const int64_t num_pairs = p.B * p.G;
  const int64_t per_pair = WaveBytes(prepared, 1).total();
  const int64_t per_wave = std::clamp<int64_t>(Scratch::kKeptBytes / per_pair, 1, num_pairs);
  const WaveBytes bytes(prepared, per_wave);
  const int64_t worker_bytes = Scratch::padded(prepared.kernels->backward_scratch_bytes(p.D));
  const int64_t num_workers = tensor::num_workers(per_wave * prepared.num_key_blocks);
  Scratch scratch(bytes.total() + worker_bytes * num_workers);
  point_to_scratch(params, bytes, scratch);
  char* const workers = scratch.take(worker_bytes * num_workers);
  const std::vector<int64_t> readers = readers_of_key_blocks(prepared);
  for (int64_t pair = 0; pair < num_pairs; pair += per_wave) {
    params.packed.first_pair = pair;
    params.packed.num_pairs = std::min(per_wave, num_pairs - pair);
    run_wave(prepared, readers, params, workers, worker_bytes);
  }
  return result;
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
                                    .write_pages = write_pages};
  register_part_kernels(at::kCPU, table);
  return true;
}();

}  // namespace

}  // namespace reynard::attention::cpu
