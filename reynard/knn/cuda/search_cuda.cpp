// The exact search on a GPU. Passes over growing samples of the keys find for each query a score
// that k keys are known to reach; the last pass goes over all keys and stores, of each query, the
// few that reach it. Scores that fall short are never stored.

#include "reynard/knn/gpu_search.h"

#include "reynard/knn/cuda/filter.h"

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace reynard::knn::cuda {

namespace {

constexpr int64_t kSmallestSample = 8192;  // keys; all of their scores are candidates
constexpr int64_t kFewestRanked = 64;      // a sample's k-th best is a poor guess for smaller k
constexpr int64_t kMostCandidateBytes = 48 << 20;

// How the passes of a search grow and what they may find.
struct Plan {
  std::vector<int> samples;  // one of so many blocks, falling to 1
  int64_t ranked = 0;        // the rank whose score becomes the next pass's threshold; >= k
  int64_t capacity = 0;
};

Plan make_plan(int64_t keys, int64_t k, int64_t queries) {
  Plan plan;
  plan.ranked = std::max(k, kFewestRanked);
  const int64_t first = std::max(kSmallestSample, 8 * plan.ranked);
  if (keys <= 2 * first) return {{1}, k, keys};
  // Few queries: fewer passes count more than the candidates' memory.
  const double most_growth = queries <= 8 ? 64 : 16;
  const double growth = static_cast<double>(keys) / static_cast<double>(first);
  const double passes = std::ceil(std::log(growth) / std::log(most_growth));
  const double each = std::pow(growth, 1 / passes);
  double sample = growth;
  for (int64_t i = 0; i < static_cast<int64_t>(passes); ++i, sample /= each) {
    plan.samples.push_back(std::max(1, static_cast<int>(sample)));
  }
  plan.samples.push_back(1);
  plan.capacity =
      std::max(first + 2 * kBlockKeys,
               static_cast<int64_t>(4 * each * static_cast<double>(plan.ranked)) + kBlockKeys);
  plan.capacity = std::min(plan.capacity, keys);
  return plan;
}

// What the kernels read of the rows, copied in one piece.
struct Groups {
  at::Tensor groups;     // (B*G) KeyGroup, as bytes
  at::Tensor first_ids;  // (B*G) i64
  int64_t most_keys = 0;
  bool aligned = false;
};

Groups make_groups(const Problem& problem) {
  const int64_t heads = problem.num_key_heads, D = problem.head_dim();
  const int64_t bytes = problem.bf16_keys ? 2 : 4;
  std::vector<KeyGroup> groups;
  std::vector<int64_t> first_ids;
  Groups out;
  constexpr int64_t kMostAlignedDim = 1024;  // queries of longer ones do not fit beside the keys
  out.aligned = D * bytes % 16 == 0 && D <= kMostAlignedDim;
  for (int64_t b = 0; b < problem.batch(); ++b) {
    const KeyRows& rows = problem.keys_of(b);
    out.most_keys = std::max(out.most_keys, rows.size);
    for (int64_t g = 0; g < heads; ++g) {
      KeyGroup group;
      if (rows.size > 0) {
        group.keys = static_cast<const char*>(rows.data) + g * rows.head_stride * bytes;
        group.stride = rows.slot_stride;
        group.slots = rows.slots;
        group.first_slot = rows.runs[0].slot;
        group.size = rows.size;
        out.aligned = out.aligned && reinterpret_cast<uintptr_t>(group.keys) % 16 == 0 &&
                      group.stride * bytes % 16 == 0;
      }
      groups.push_back(group);
      first_ids.push_back(rows.size > 0 ? rows.runs[0].id : 0);
    }
  }
  const auto size = static_cast<int64_t>(groups.size() * sizeof(KeyGroup));
  const at::Tensor staged = at::empty({size}, at::kByte);
  std::memcpy(staged.mutable_data_ptr(), groups.data(), static_cast<size_t>(size));
  const at::Device device = problem.queries.device();
  out.groups = staged.to(device);
  out.first_ids = at::tensor(first_ids, at::kLong).to(device);
  return out;
}

// Both the matrix unit's sum and the plain loop's are within a multiple of 2^-22 |q|_1 max|k| of
// the exact sum (the matrix unit may cut each of a step's addends at its largest one's last bit but
// one); rounding the query to bf16 adds |q - rounded q|_1 max|k|.
at::Tensor margins(const at::Tensor& queries) {
  const double terms = 1.2 * static_cast<double>(queries.size(3)) + 32;
  const at::Tensor rounded = queries.to(at::kBFloat16).to(at::kFloat);
  const at::Tensor size = queries.abs().sum(-1) + rounded.abs().sum(-1);
  return (size * (terms * 0x1p-22) + (queries - rounded).abs().sum(-1)) * (1 + 0x1p-10);
}

// (B, Tq, H, k) codes, best first, of a block of queries (B, Tq, H, D).
at::Tensor best_codes(const Problem& problem, FilterTask& task, const at::Tensor& queries) {
  const int64_t B = queries.size(0), Tq = queries.size(1), H = queries.size(2);
  const Plan plan = make_plan(task.most_keys, problem.k, task.queries_per_group);
  const auto codes = queries.options().dtype(at::kLong);
  at::Tensor thresholds = at::full({B, Tq, H}, kNoCode, codes);
  at::Tensor error;
  task.queries = queries.const_data_ptr<float>();
  task.capacity = static_cast<int>(plan.capacity);
  if (uses_matrix_unit(task)) {
    error = margins(queries);
    task.margins = error.const_data_ptr<float>();
  }
  const int processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  at::Tensor candidates = at::empty({B, Tq, H, plan.capacity}, codes);
  at::Tensor counts = at::empty({B, Tq, H}, queries.options().dtype(at::kInt));
  const auto pass = [&](int sample) {
    candidates.fill_(kNoCode);
    counts.zero_();
    task.sample = sample;
    task.thresholds = thresholds.const_data_ptr<Code>();
    task.candidates = candidates.data_ptr<Code>();
    task.counts = counts.data_ptr<int>();
    filter(task, processors, stream);
  };
  const auto raise = [&](int64_t rank) {
    const int64_t size = std::min(rank, plan.capacity);
    const at::Tensor best = std::get<0>(at::topk(candidates, size, -1));
    // Fewer than `rank` of a sample may have reached the threshold.
    if (size == rank) thresholds = at::maximum(thresholds, best.select(-1, size - 1));
  };
  for (size_t i = 0; i + 1 < plan.samples.size(); ++i) {
    pass(plan.samples[i]);
    raise(plan.ranked);
  }
  for (pass(1); counts.max().item<int>() > plan.capacity; pass(1)) {
    // Each round leaves at least capacity - k fewer.
    raise(problem.k);
  }
  return std::get<0>(at::topk(candidates, problem.k, -1));
}

SearchResult search(const Problem& problem) {
  const c10::cuda::CUDAGuard device(problem.queries.device());
  const at::Tensor& queries = problem.queries;
  const int64_t B = queries.size(0), Tq = queries.size(1), H = queries.size(2), k = problem.k;
  const std::vector<int64_t> shape = {B, Tq, H, k};
  SearchResult found{at::empty(shape, queries.options().dtype(at::kLong)),
                     at::empty(shape, queries.options())};
  if (queries.numel() == 0) return found;
  const Groups groups = make_groups(problem);
  FilterTask task;
  task.groups = static_cast<const KeyGroup*>(groups.groups.const_data_ptr());
  task.num_rows = static_cast<int>(B);
  task.num_key_heads = static_cast<int>(problem.num_key_heads);
  task.repeat = static_cast<int>(H / problem.num_key_heads);
  task.head_dim = static_cast<int>(problem.head_dim());
  task.most_keys = groups.most_keys;
  task.bf16_keys = problem.bf16_keys;
  task.aligned = groups.aligned;
  TORCH_INTERNAL_ASSERT(groups.most_keys < (int64_t{1} << 32));
  const Plan plan = make_plan(groups.most_keys, k, Tq * task.repeat);
  const int64_t fit =
      kMostCandidateBytes / static_cast<int64_t>(sizeof(Code)) / (plan.capacity * B * H);
  const int64_t block = std::clamp<int64_t>(fit, 1, Tq);
  for (int64_t begin = 0; begin < Tq; begin += block) {
    const int64_t size = std::min(block, Tq - begin);
    const at::Tensor some = queries.narrow(1, begin, size).contiguous();
    task.num_tokens = static_cast<int>(size);
    task.queries_per_group = task.num_tokens * task.repeat;
    const at::Tensor codes = best_codes(problem, task, some);
    at::Tensor ids = size == Tq ? found.ids : at::empty(codes.sizes(), found.ids.options());
    at::Tensor scores =
        size == Tq ? found.scores : at::empty(codes.sizes(), found.scores.options());
    task.queries = some.const_data_ptr<float>();
    write_results({.search = task,
                   .codes = codes.const_data_ptr<Code>(),
                   .first_ids = groups.first_ids.const_data_ptr<int64_t>(),
                   .ids = ids.data_ptr<int64_t>(),
                   .scores = scores.data_ptr<float>(),
                   .k = static_cast<int>(k)},
                  c10::cuda::getCurrentCUDAStream());
    if (size == Tq) continue;
    found.ids.narrow(1, begin, size).copy_(ids);
    found.scores.narrow(1, begin, size).copy_(scores);
  }
  return found;
}

// While the library is loaded.
const bool kRegistered = [] {
  register_gpu_search(search);
  return true;
}();

}  // namespace

}  // namespace reynard::knn::cuda
