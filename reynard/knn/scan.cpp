#include "reynard/knn/scan.h"

#include "reynard/knn/cpu/path.h"
#include "reynard/knn/query_group.h"
#include "reynard/tensor/parallel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

namespace reynard::knn {

namespace {

constexpr int64_t kBlockKeys = 256;        // 32 KB of bf16 at D = 64: stay in the caches
constexpr int64_t kMaxQueries = 256;       // that a task compares with each block of keys
constexpr int64_t kFewestShared = 4;       // fewer queries are scored one by one
constexpr int64_t kFewestTaskKeys = 8192;  // below this a task is not worth its start
constexpr int64_t kTasksPerWorker = 4;
constexpr int64_t kPartsPerWorker = 2;  // of the keys of one range: one thread merges their best

// The first key that is not finite, whichever task meets one first.
class BrokenKey {
 public:
  void report(int64_t row, int64_t head, int64_t id) {
    const std::lock_guard lock(mutex_);
    const std::tuple key(row, head, id);
    if (!first_ || key < *first_) first_ = key;
  }
  void check() const {
    if (first_) std::apply(fail_not_finite, *first_);
  }

 private:
  std::mutex mutex_;
  std::optional<std::tuple<int64_t, int64_t, int64_t>> first_;
};

// Queries of one row that share a head of keys: query j is token j / R, head key_head * R + j % R,
// R = H / G.
struct QueryRange {
  int64_t row = 0, key_head = 0;
  int64_t first = 0, size = 0;
  int64_t num_parts = 1;  // of the keys
};

struct Plan {
  std::vector<QueryRange> ranges;
  std::vector<std::pair<int64_t, int64_t>> tasks;  // (range, part of its keys)
};

Plan make_plan(const Problem& problem) {
  const int64_t repeat = problem.num_heads() / problem.num_key_heads;
  const int64_t queries = problem.num_queries() * repeat;
  const int64_t lists = problem.batch() * problem.num_key_heads;
  const int64_t workers = tensor::num_workers(std::numeric_limits<int64_t>::max());
  const int64_t wanted = kTasksPerWorker * workers;
  // Each range of queries reads all keys: as few ranges as keep the workers busy.
  constexpr int64_t kLanes = cpu::kQueryLanes;
  const int64_t share = (queries * lists + wanted - 1) / wanted;
  const int64_t size = std::clamp((share + kLanes - 1) / kLanes * kLanes, kLanes, kMaxQueries);
  const int64_t num_ranges = lists * ((queries + size - 1) / size);
  Plan plan;
  for (int64_t row = 0; row < problem.batch(); ++row) {
    const int64_t keys = problem.keys_of(row).size;
    const int64_t most = std::max<int64_t>(1, keys / kFewestTaskKeys);
    for (int64_t head = 0; head < problem.num_key_heads; ++head) {
      for (int64_t first = 0; first < queries; first += size) {
        const int64_t parts =
            num_ranges == 1 ? kPartsPerWorker * workers : (wanted + num_ranges - 1) / num_ranges;
        plan.ranges.push_back(
            {row, head, first, std::min(size, queries - first), std::min(most, parts)});
      }
    }
  }
  for (int64_t range = 0; range < std::ssize(plan.ranges); ++range) {
    for (int64_t part = 0; part < plan.ranges[range].num_parts; ++part) {
      plan.tasks.emplace_back(range, part);
    }
  }
  return plan;
}

int64_t query_index(const Problem& problem, const QueryRange& range, int64_t j) {
  const int64_t repeat = problem.num_heads() / problem.num_key_heads;
  const int64_t t = j / repeat, head = range.key_head * repeat + j % repeat;
  return (range.row * problem.num_queries() + t) * problem.num_heads() + head;
}

// floors: one per query of the problem.
BestKeys best_keys(const Problem& problem,
                   const QueryRange& range,
                   int64_t query,
                   std::vector<Floor>& floors) {
  const int64_t dim = problem.head_dim();
  const ExactScore exact{problem.queries.const_data_ptr<float>() + query * dim,
                         &problem.keys_of(range.row),
                         range.key_head,
                         dim,
                         problem.bf16_keys};
  return {problem.k, exact, floors[static_cast<size_t>(query)]};
}

// Keys whose lower halves of codes have been asked for.
struct Waiting {
  std::vector<const uint8_t*> lower;
  std::vector<int32_t> products;
  std::vector<float> scales;
  std::vector<int64_t> ids;

  void add(const uint8_t* row, int32_t product, float scale, int64_t id) {
    lower.push_back(row);
    products.push_back(product);
    scales.push_back(scale);
    ids.push_back(id);
  }
  void clear() {
    lower.clear();
    products.clear();
    scales.clear();
    ids.clear();
  }
};

// One range of queries against one part of the keys. floors: one per query of the problem.
class Scan {
 public:
  Scan(const Problem& problem,
       const QueryRange& range,
       std::vector<Floor>& floors,
       BrokenKey& broken)
      : problem_(problem),
        range_(range),
        rows_(problem.keys_of(range.row)),
        kernels_(problem.bf16_keys ? cpu::scan_tables().bf16 : cpu::scan_tables().f32),
        code_kernels_(cpu::scan_tables().codes),
        depth_((problem.head_dim() + cpu::kDepthStep - 1) / cpu::kDepthStep * cpu::kDepthStep),
        element_bytes_(problem.bf16_keys ? 2 : 4),
        broken_(broken) {
    make_groups(floors);
    const bool shared = std::any_of(
        groups_.begin(), groups_.end(), [](const QueryGroup& group) { return !group.single(); });
    const int64_t lanes = shared ? cpu::kQueryLanes : 1;
    scores_.resize(lines_of((kBlockKeys + kCodeGroup) * lanes * 4));
    found_.resize(static_cast<size_t>((kBlockKeys + kCodeGroup) * lanes));
    if (!shared && code_kernels_.reach && rows_.codes.defined()) encode_queries();
    if (shared && kernels_.widen) widened_.resize(lines_of(kBlockKeys * depth_ * 4));
  }

  // Keys [begin, end) of the row, counted in the order of their ids.
  void run(int64_t begin, int64_t end) {
    int64_t passed = 0;
    for (const KeyRun& run : rows_.runs) {
      const int64_t last = std::min(end - passed, run.size);
      for (int64_t i = std::max<int64_t>(begin - passed, 0); i < last; i += kBlockKeys) {
        const int64_t size = std::min(kBlockKeys, last - i);
        coded_.empty() ? visit(run.slot + i, run.id + i, size)
                       : visit_codes(run.slot + i, run.id + i, size);
      }
      passed += run.size;
    }
    for (size_t q = 0; q < coded_.size(); ++q) settle_codes(q);
  }

  std::vector<std::vector<Candidate>> take() {
    std::vector<std::vector<Candidate>> all;
    for (QueryGroup& group : groups_) {
      for (Query& query : group.queries()) all.push_back(query.best.take_candidates());
    }
    return all;
  }

 private:
  void make_groups(std::vector<Floor>& floors) {
    const int64_t dim = problem_.head_dim();
    const auto* queries = problem_.queries.const_data_ptr<float>();
    for (int64_t first = 0; first < range_.size;) {
      const int64_t left = range_.size - first;
      const int64_t size = left < kFewestShared ? 1 : std::min(left, cpu::kQueryLanes);
      std::vector<Query> members;
      std::vector<float> values(static_cast<size_t>(size * depth_));
      for (int64_t i = 0; i < size; ++i) {
        const int64_t index = query_index(problem_, range_, range_.first + first + i);
        const float* q = queries + index * dim;
        std::copy(q, q + dim, values.begin() + i * depth_);
        members.push_back({best_keys(problem_, range_, index, floors)});
      }
      groups_.emplace_back(std::move(members), std::move(values), kernels_, depth_);
      first += size;
    }
  }

  // Unless a score or its bound might overflow f32.
  void encode_queries() {
    const auto* queries = problem_.queries.const_data_ptr<float>();
    const int64_t dim = problem_.head_dim();
    for (int64_t i = 0; i < range_.size; ++i) {
      const double norm = groups_[static_cast<size_t>(i)].queries()[0].norm;
      const double size = 256 * norm * std::max(rows_.codes.largest_scale, 1.0);
      if (!(size < 0.25 * std::numeric_limits<float>::max())) return coded_.clear();
      const float* q = queries + query_index(problem_, range_, range_.first + i) * dim;
      coded_.push_back(encode_query(q, dim, 2 * rows_.codes.lower.size(2)));
    }
    waiting_.resize(coded_.size());
  }

  // Which of these keys can be among the best by the upper halves of their codes. The lower halves
  // of those lie anywhere: they are asked for now and read after the next block.
  void visit_codes(int64_t slot, int64_t id, int64_t size) {
    const KeyCodes& codes = rows_.codes;
    const int64_t row_bytes = codes.lower.size(2), depth = 2 * row_bytes;
    const int64_t skipped = slot % kCodeGroup;  // groups are read whole
    const int64_t whole = (skipped + size + kCodeGroup - 1) / kCodeGroup * kCodeGroup;
    const int64_t at = range_.key_head * codes.scales.size(1) + slot - skipped;
    const cpu::CodeBlock block{codes.upper.const_data_ptr<uint8_t>() + at * row_bytes,
                               codes.scales.const_data_ptr<float>() + at,
                               whole,
                               depth};
    const uint8_t* lower = codes.lower.const_data_ptr<uint8_t>() +
                           (range_.key_head * codes.lower.size(1) + slot - skipped) * row_bytes;
    auto* products = reinterpret_cast<int32_t*>(scores_.data());
    for (size_t q = 0; q < groups_.size(); ++q) {
      const float floor = groups_[q].queries()[0].best.floor();
      const int64_t num_found = code_kernels_.reach(
          block, coded_[q].view(), coded_[q].coarse, floor, found_.data(), products);
      settle_codes(q);
      for (int64_t i = 0; i < num_found; ++i) {
        const int32_t key = found_[static_cast<size_t>(i)];
        if (key < skipped || key >= skipped + size) continue;
        const uint8_t* row = lower + key * row_bytes;
        for (int64_t byte = 0; byte < row_bytes; byte += 64) __builtin_prefetch(row + byte);
        waiting_[q].add(row, products[i], block.scales[key], id + key - skipped);
      }
    }
  }

  void settle_codes(size_t q) {
    Waiting& waiting = waiting_[q];
    if (waiting.ids.empty()) return;
    code_kernels_.refine(
        waiting.lower.data(), std::ssize(waiting.ids), coded_[q].view(), waiting.products.data());
    const cpu::CodeBound& bound = coded_[q].fine;
    BestKeys& best = groups_[q].queries()[0].best;
    for (size_t i = 0; i < waiting.ids.size(); ++i) {
      const float score = bound.factor * static_cast<float>(waiting.products[i]);
      const float upper = waiting.scales[i] * (score + bound.error) + bound.smallest;
      const float lower = waiting.scales[i] * (score - bound.error) - bound.smallest;
      if (upper >= best.floor()) best.add({lower, upper, waiting.ids[i]});
    }
    waiting.clear();
  }

  // The keys where they lie if the kernels can take them so, else a zero-padded copy.
  cpu::KeyBlock block_at(int64_t slot, int64_t size) {
    const auto* data =
        static_cast<const std::byte*>(rows_.data) +
        (range_.key_head * rows_.head_stride + slot * rows_.slot_stride) * element_bytes_;
    const int64_t dim = problem_.head_dim();
    if (dim == depth_ && size % cpu::kKeyStep == 0) return {data, rows_.slot_stride, size, depth_};
    const int64_t padded = (size + cpu::kKeyStep - 1) / cpu::kKeyStep * cpu::kKeyStep;
    copy_.assign(lines_of(padded * depth_ * element_bytes_), {});
    auto* out = reinterpret_cast<std::byte*>(copy_.data());
    for (int64_t i = 0; i < size; ++i) {
      std::memcpy(out + i * depth_ * element_bytes_,
                  data + i * rows_.slot_stride * element_bytes_,
                  static_cast<size_t>(dim * element_bytes_));
    }
    return {out, depth_, padded, depth_};
  }

  void report_broken(const cpu::KeyBlock& block, int64_t id) {
    for (int64_t i = 0;; ++i) {
      cpu::KeyBlock one = block;
      one.keys = static_cast<const std::byte*>(block.keys) + i * block.stride * element_bytes_;
      one.size = 1;
      if (std::isfinite(__builtin_bit_cast(float, kernels_.largest(one)))) continue;
      return broken_.report(range_.row, range_.key_head, id + i);
    }
  }

  void visit(int64_t slot, int64_t id, int64_t size) {
    const cpu::KeyBlock block = block_at(slot, size);
    auto* scores = reinterpret_cast<float*>(scores_.data());
    const bool alone = groups_.size() == 1 && groups_[0].single();
    const auto largest = __builtin_bit_cast(
        float,
        alone ? kernels_.score_one(block, groups_[0].packed(), scores) : kernels_.largest(block));
    if (!std::isfinite(largest)) return report_broken(block, id);
    if (alone) return compare(groups_[0], id, size, largest);
    cpu::KeyBlock wide = block;
    if (!widened_.empty()) {
      auto* keys = reinterpret_cast<float*>(widened_.data());
      kernels_.widen(block, keys);
      wide = {keys, depth_, block.size, depth_};
    }
    for (QueryGroup& group : groups_) {
      if (group.single()) {
        kernels_.score_one(block, group.packed(), scores);
      } else {
        kernels_.score_many(wide, group.packed(), scores);
      }
      compare(group, id, size, largest);
    }
  }

  // With the scores of a block, whose first key is `id`.
  void compare(QueryGroup& group, int64_t id, int64_t size, float largest) {
    std::array<float, cpu::kQueryLanes> errors = {};
    std::array<float, cpu::kQueryLanes> thresholds;
    thresholds.fill(std::numeric_limits<float>::infinity());  // what absent queries cannot reach
    std::vector<Query>& queries = group.queries();
    for (size_t i = 0; i < queries.size(); ++i) {
      errors[i] = error_bound(queries[i], largest, kernels_, depth_);
      thresholds[i] = queries[i].best.floor() - errors[i];
    }
    const auto* scores = reinterpret_cast<const float*>(scores_.data());
    const int64_t num_found =
        group.single() ? kernels_.reach_one(scores, size, thresholds[0], found_.data())
                       : kernels_.reach_many(scores, size, thresholds.data(), found_.data());
    for (int64_t i = 0; i < num_found; ++i) {
      const auto at = static_cast<size_t>(found_[static_cast<size_t>(i)]);
      const size_t lane = at % static_cast<size_t>(group.lanes());
      BestKeys& best = queries[lane].best;
      const int64_t key = id + static_cast<int64_t>(at) / group.lanes();
      const float error = errors[lane];
      if (!std::isfinite(error)) {
        best.add_exact(key);
      } else if (scores[at] + error >= best.floor()) {  // the floor rises while a block is added
        best.add({scores[at] - error, scores[at] + error, key});
      }
    }
  }

  const Problem& problem_;
  const QueryRange& range_;
  const KeyRows& rows_;
  const cpu::ScanKernels& kernels_;
  const cpu::CodeKernels& code_kernels_;
  int64_t depth_;
  int64_t element_bytes_;
  BrokenKey& broken_;
  std::vector<QueryGroup> groups_;
  std::vector<CodedQuery> coded_;  // one per group, if codes are read
  std::vector<Waiting> waiting_;   // as many
  Scratch copy_, widened_, scores_;
  std::vector<int32_t> found_;
};

using Lists = std::vector<std::vector<Candidate>>;  // per query

void write(const Problem& problem,
           int64_t query,
           std::vector<Scored> best,
           const SearchResult& out) {
  const auto found = std::min<int64_t>(problem.k, std::ssize(best));
  std::partial_sort(best.begin(), best.begin() + found, best.end(), before);
  auto* ids = out.ids.mutable_data_ptr<int64_t>() + query * problem.k;
  auto* scores = out.scores.mutable_data_ptr<float>() + query * problem.k;
  for (int64_t i = 0; i < found; ++i) {
    ids[i] = best[static_cast<size_t>(i)].id;
    scores[i] = best[static_cast<size_t>(i)].score;
  }
}

}  // namespace

// Which parts the keys are cut into changes no result: the best k of all are among the best k of
// the parts, and the order of before() is total.
void scan(const Problem& problem, const SearchResult& out) {
  if (problem.queries.numel() == 0) return;
  const Plan plan = make_plan(problem);
  BrokenKey broken;
  std::vector<Lists> lists(plan.tasks.size());
  std::vector<Floor> floors(
      static_cast<size_t>(problem.batch() * problem.num_queries() * problem.num_heads()));
  tensor::run_tasks(std::ssize(plan.tasks), [&](int64_t task, int64_t /*worker*/) {
    const auto [number, part] = plan.tasks[static_cast<size_t>(task)];
    const QueryRange& range = plan.ranges[static_cast<size_t>(number)];
    const int64_t size = problem.keys_of(range.row).size;
    const auto edge = [&](int64_t p) {  // parts begin at whole blocks
      return p == range.num_parts ? size : size / kBlockKeys * p / range.num_parts * kBlockKeys;
    };
    Scan one(problem, range, floors, broken);
    one.run(edge(part), edge(part + 1));
    lists[static_cast<size_t>(task)] = one.take();
  });
  broken.check();
  int64_t first_task = 0;
  for (const QueryRange& range : plan.ranges) {
    tensor::run_tasks(range.size, [&](int64_t j, int64_t /*worker*/) {
      const int64_t query = query_index(problem, range, range.first + j);
      BestKeys best = best_keys(problem, range, query, floors);
      for (int64_t part = 0; part < range.num_parts; ++part) {
        std::vector<Candidate>& list =
            lists[static_cast<size_t>(first_task + part)][static_cast<size_t>(j)];
        for (const Candidate& candidate : list) {
          if (candidate.upper >= best.floor()) best.add(candidate);
        }
        list = {};
      }
      write(problem, query, best.take(), out);
    });
    first_task += range.num_parts;
  }
}

}  // namespace reynard::knn
