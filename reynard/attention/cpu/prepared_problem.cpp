#include "reynard/attention/cpu/prepared_problem.h"

#include "reynard/attention/cpu/path.h"
#include "reynard/attention/cpu/visibility.h"
#include "reynard/attention/operand_of.h"

#include <ATen/Parallel.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace reynard::attention::cpu {

namespace {

std::vector<KeyRange> key_ranges(const Problem& p, int64_t queries_per_block) {
  const int64_t num_blocks = div_up(p.Tq, queries_per_block);
  std::vector<KeyRange> ranges(p.B * p.H * num_blocks);
  at::parallel_for(0, p.B * p.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t m = 0; m < num_blocks; ++m) {
        const int64_t first = m * queries_per_block;
        ranges[head * num_blocks + m] = keys_of_queries(
            p, head / p.H, head % p.H, first, std::min(first + queries_per_block, p.Tq));
      }
    }
  });
  return ranges;
}

}  // namespace

PreparedProblem prepare(const PartArguments& arguments) {
  PreparedProblem prepared;
  Problem& p = prepared.problem;
  const at::Tensor& q = arguments.q;
  const KeyPart& part = arguments.part;
  p.B = q.size(0), p.Tq = q.size(1), p.H = q.size(2), p.D = q.size(3);
  p.Tk = part.k.size(1), p.G = part.k.size(2);
  p.q = operand_of(q), p.k = operand_of(part.k), p.v = operand_of(part.v);
  p.scale = arguments.scale;
  p.causal = part.causal;
  TORCH_INTERNAL_ASSERT(arguments.query_sums.defined() == part.sums.defined());
  if (part.sums.defined()) {
    prepared.query_sums = arguments.query_sums.contiguous();
    prepared.key_sums = part.sums.contiguous();
    p.query_sums = prepared.query_sums.const_data_ptr<double>();
    p.key_sums = prepared.key_sums.const_data_ptr<double>();
  }
  if (part.first_key.defined()) {
    prepared.first_key = part.first_key.contiguous();
    p.first_key = prepared.first_key.const_data_ptr<int32_t>();
  }
  if (arguments.start.defined()) {
    prepared.start = arguments.start.contiguous();
    p.start = prepared.start.const_data_ptr<int32_t>();
  }
  prepared.kernels = &current_path().kernels(p.q.element);
  prepared.ranges = key_ranges(p, prepared.kernels->queries_per_block);
  p.ranges = prepared.ranges.data();
  prepared.num_query_blocks = div_up(p.Tq, prepared.kernels->queries_per_block);
  prepared.num_key_blocks = div_up(p.Tk, prepared.kernels->keys_per_block);
  return prepared;
}

at::Tensor empty_lse(const at::Tensor& q) {
  return at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
}

}  // namespace reynard::attention::cpu
