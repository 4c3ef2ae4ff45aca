// The exact search on a GPU. Passes over growing samples of the keys find for each query a score
// that k keys are known to reach; the last pass goes over all keys and stores, of each query, the
// few that reach it. Scores that fall short are never stored.

#include "reynard/knn/gpu_search.h"

#include "reynard/knn/cuda/filter.h"
#include "reynard/knn/cuda/select.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/topk.h>
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
// Candidates of queries that are answered at once: so much, or a quarter of the keys' bytes where
// that is more (many short rows: few queries of each would be a pass each).
constexpr int64_t kMostCandidateBytes = 48 << 20;
constexpr int64_t kKeyBytesPerCandidateByte = 4;
// Of a grid in its second dimension, where queries of a group lie, and its third, of groups.
constexpr int64_t kMostBlocks = 65535;

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

struct Groups {
  std::vector<KeyGroup> groups;  // (B*G)
  int64_t most_keys = 0;
  int64_t key_bytes = 0;
  bool aligned = false;
};

Groups make_groups(const Problem& problem) {
  const int64_t heads = problem.num_key_heads, D = problem.head_dim();
  const int64_t bytes = problem.bf16_keys ? 2 : 4;
  Groups out;
  constexpr int64_t kMostAlignedDim = 1024;  // queries of longer ones do not fit beside the keys
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  out.aligned =
      D * bytes % 16 == 0 && D <= kMostAlignedDim && is_aligned(problem.queries.const_data_ptr());
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
        group.first_id = rows.runs[0].id;
        out.key_bytes += rows.size * D * bytes;
        out.aligned = out.aligned && is_aligned(group.keys) && group.stride * bytes % 16 == 0;
      }
      out.groups.push_back(group);
    }
  }
  return out;
}

// Groups in the device's memory, as bytes, where they are too many to be arguments of kernels.
at::Tensor copied_groups(const std::vector<KeyGroup>& groups, at::Device device) {
  const auto size = static_cast<int64_t>(groups.size() * sizeof(KeyGroup));
  const at::Tensor staged = at::empty({size}, at::kByte);
  std::memcpy(staged.mutable_data_ptr(), groups.data(), static_cast<size_t>(size));
  return staged.to(device);
}

// Both the matrix unit's sum and the plain loop's are within a multiple of 2^-22 |q|_1 max|k| of
// the exact sum (the matrix unit may cut each of a step's addends at its largest one's last bit but
// one); rounding the query to bf16 adds |q - rounded q|_1 max|k|.
float margin_factor(int64_t head_dim) {
  return static_cast<float>((1.2 * static_cast<double>(head_dim) + 32) * 0x1p-22);
}

// What the passes over the keys leave of each query.
struct Found {
  at::Tensor thresholds;  // (B, Tq, H) codes
  at::Tensor candidates;  // (B, Tq, H, capacity) codes
  at::Tensor counts;      // (B * Tq * H + 1) i32; the last one says whether a list was too short
  at::Tensor margins;     // (B, Tq, H) f32, where the matrix unit filters

  Found(const at::Tensor& queries, int64_t capacity, bool has_margins) {
    const int64_t B = queries.size(0), Tq = queries.size(1), H = queries.size(2);
    const auto codes = queries.options().dtype(at::kLong);
    thresholds = at::empty({B, Tq, H}, codes);
    candidates = at::empty({B, Tq, H, capacity}, codes);
    counts = at::empty({B * Tq * H + 1}, queries.options().dtype(at::kInt));
    if (has_margins) margins = at::empty({B, Tq, H}, queries.options());
  }
  at::Tensor overflow() const { return counts.narrow(0, counts.size(0) - 1, 1); }
};

// Points the task at the queries and at what is found of them, of which nothing is yet.
void begin(FilterTask& task, const at::Tensor& queries, const Found& found, cudaStream_t stream) {
  task.queries = queries.const_data_ptr<float>();
  task.capacity = static_cast<int>(found.candidates.size(3));
  task.thresholds = found.thresholds.const_data_ptr<Code>();
  task.candidates = found.candidates.data_ptr<Code>();
  task.counts = found.counts.data_ptr<int>();
  Beginning beginning = {.thresholds = found.thresholds.data_ptr<Code>(), .counts = task.counts};
  if (found.margins.defined()) {
    task.margins = beginning.margins = found.margins.data_ptr<float>();
    beginning.margin_factor = margin_factor(task.head_dim);
  }
  begin_search(task, beginning, stream);
}

// The k best keys of a block of queries (B, Tq, H, D), best first.
SearchResult find_best(FilterTask task, const at::Tensor& queries, int64_t k) {
  const Plan plan = make_plan(task.most_keys, k, task.queries_per_group);
  const int processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  Found found(queries, plan.capacity, uses_matrix_unit(task));
  begin(task, queries, found, stream);
  const auto pass = [&](int sample, bool sparse) {
    task.sample = sample, task.sparse = sparse;
    filter(task, processors, stream);
  };
  const auto raise = [&](int64_t rank) {
    raise_thresholds(
        task, found.thresholds.data_ptr<Code>(), task.counts, static_cast<int>(rank), stream);
  };
  for (size_t i = 0; i + 1 < plan.samples.size(); ++i) {
    pass(plan.samples[i], /*sparse=*/i > 0);
    raise(plan.ranked);
  }
  const std::vector<int64_t> shape = {queries.size(0), queries.size(1), queries.size(2), k};
  at::Tensor best = at::empty(shape, queries.options().dtype(at::kLong));
  const SearchResult result{at::empty_like(best), at::empty(shape, queries.options())};
  const at::Tensor overflow = found.overflow();
  // Each round leaves at least capacity - k fewer.
  for (;;) {
    if (k > kMostSorted) found.candidates.fill_(kNoCode);
    pass(1, /*sparse=*/plan.samples.size() > 1);
    if (k <= kMostSorted) {
      sort_best(task, best.data_ptr<Code>(), static_cast<int>(k), overflow.data_ptr<int>(), stream);
    } else {
      best = std::get<0>(at::topk(found.candidates, k, -1));
    }
    // Before it is known whether they are complete: the device need not wait for this thread.
    write_results({.search = task,
                   .codes = best.const_data_ptr<Code>(),
                   .ids = result.ids.data_ptr<int64_t>(),
                   .scores = result.scores.data_ptr<float>(),
                   .k = static_cast<int>(k)},
                  stream);
    const bool complete = k <= kMostSorted ? overflow.item<int>() == 0
                                           : found.counts.max().item<int>() <= plan.capacity;
    if (complete) return result;
    raise(k);
    overflow.zero_();
  }
}

SearchResult search(const Problem& problem) {
  const c10::cuda::CUDAGuard device(problem.queries.device());
  const at::Tensor& queries = problem.queries;
  const int64_t B = queries.size(0), Tq = queries.size(1), H = queries.size(2), k = problem.k;
  const auto empty_result = [&] {
    const std::vector<int64_t> shape = {B, Tq, H, k};
    return SearchResult{at::empty(shape, queries.options().dtype(at::kLong)),
                        at::empty(shape, queries.options())};
  };
  if (queries.numel() == 0) return empty_result();
  tensor::check_value(B * problem.num_key_heads <= kMostBlocks,
                      "knn",
                      "rows times key heads",
                      B * problem.num_key_heads,
                      "at most 65535 in one search on a GPU");
  const Groups groups = make_groups(problem);
  FilterTask task;
  at::Tensor many_groups;
  if (groups.groups.size() <= FilterTask::kFewGroups) {
    std::ranges::copy(groups.groups, task.few_groups);
  } else {
    many_groups = copied_groups(groups.groups, queries.device());
    task.many_groups = static_cast<const KeyGroup*>(many_groups.const_data_ptr());
  }
  task.num_rows = static_cast<int>(B);
  task.num_key_heads = static_cast<int>(problem.num_key_heads);
  task.repeat = static_cast<int>(H / problem.num_key_heads);
  task.head_dim = static_cast<int>(problem.head_dim());
  task.most_keys = groups.most_keys;
  task.bf16_keys = problem.bf16_keys;
  task.aligned = groups.aligned;
  TORCH_INTERNAL_ASSERT(groups.most_keys < (int64_t{1} << 32));
  const Plan plan = make_plan(groups.most_keys, k, Tq * task.repeat);
  const int64_t budget =
      std::max(kMostCandidateBytes, groups.key_bytes / kKeyBytesPerCandidateByte);
  const int64_t fit = budget / static_cast<int64_t>(sizeof(Code)) / (plan.capacity * B * H);
  const int64_t most = std::min(Tq, std::max<int64_t>(kMostBlocks / task.repeat, 1));
  const int64_t block = std::clamp<int64_t>(fit, 1, most);
  const auto best_of = [&](int64_t begin, int64_t size) {
    task.num_tokens = static_cast<int>(size);
    task.queries_per_group = task.num_tokens * task.repeat;
    return find_best(task, queries.narrow(1, begin, size).contiguous(), k);
  };
  if (block == Tq) return best_of(0, Tq);
  const SearchResult found = empty_result();
  for (int64_t begin = 0; begin < Tq; begin += block) {
    const int64_t size = std::min(block, Tq - begin);
    const SearchResult best = best_of(begin, size);
    found.ids.narrow(1, begin, size).copy_(best.ids);
    found.scores.narrow(1, begin, size).copy_(best.scores);
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
