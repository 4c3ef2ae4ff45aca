#include "reynard/attention/cpu/decode.h"

#include "reynard/attention/cache.h"
#include "reynard/attention/cpu/decode_call.h"
#include "reynard/attention/cpu/first_pages.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/scratch.h"
#include "reynard/tensor/cpu_features.h"
#include "reynard/tensor/parallel.h"
#include "reynard/tensor/row_tensor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

namespace reynard::attention::cpu {

namespace {

// Tasks of so little work that waking a thread would take longer are done by the caller.
template <class Body>
void run_tasks_if(bool worthwhile, int64_t num_tasks, const Body& body) {
  if (worthwhile) return tensor::run_tasks(num_tasks, body);
  for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

// What one worker attends to of one (sequence, kv head): a run of pages, or the few that are held.
struct RunTask {
  int64_t s, g, begin, end;  // pages
  int64_t part;              // place of its first run among the softmaxes
};

int64_t end_of_run(int64_t page) {
  return (page / kRunPages + 1) * kRunPages;
}

// Whole runs of one (sequence, kv head) that follow each other.
struct WholeRuns {
  RunTask first;
  int64_t end;  // of these tasks among all
};

// The runs that some head of a group reads keys of: in a pruned text few of all. Thousands of tasks
// in a long one, so they are counted, not listed.
struct Runs {
  std::vector<WholeRuns> whole;
  std::vector<RunTask> others;
  std::vector<int64_t> first_part;  // (S * G + 1): of (s, g)

  Runs(const DecodeCall& call, FirstPages& first) {
    int64_t num_parts = 0;
    first_part.reserve(call.S * call.G + 1);
    for (int64_t sg = 0; sg < call.S * call.G; ++sg) {
      const int64_t s = sg / call.G, g = sg % call.G, end = call.num_pages(s);
      const auto heads = first.of(call, s, g);
      const int64_t page =
          std::max(*std::min_element(heads, heads + call.group), call.first_key(s) / kPageTokens);
      first_part.push_back(num_parts);
      // A sequence whose first key lies behind its end has nothing to attend to.
      if (page >= end) continue;
      if (first.is_open[sg]) {
        others.push_back({s, g, page, end, num_parts});
      } else {
        add(s, g, page, end, num_parts);
      }
      num_parts += (end - 1) / kRunPages - page / kRunPages + 1;
    }
    first_part.push_back(num_parts);
    // The short ones last: threads then end together.
    std::ranges::stable_sort(
        others, std::greater(), [](const RunTask& task) { return task.end - task.begin; });
  }

  int64_t num_parts() const { return first_part.back(); }
  int64_t num_whole() const { return whole.empty() ? 0 : whole.back().end; }
  int64_t num_tasks() const { return num_whole() + std::ssize(others); }
  RunTask task(int64_t index) const {
    if (index >= num_whole()) return others[index - num_whole()];
    const auto runs = std::ranges::upper_bound(whole, index, {}, &WholeRuns::end);
    const int64_t begin = runs == whole.begin() ? 0 : std::prev(runs)->end, n = index - begin;
    RunTask task = runs->first;
    task.begin += n * kRunPages, task.end += n * kRunPages, task.part += n;
    return task;
  }

 private:
  // Pages [page, end) of (s, g): what begins or ends within a run, and whole runs.
  void add(int64_t s, int64_t g, int64_t page, int64_t end, int64_t part) {
    if (page % kRunPages != 0 || end_of_run(page) > end) {
      const int64_t to = std::min(end_of_run(page), end);
      others.push_back({s, g, page, to, part});
      page = to, ++part;
    }
    const int64_t runs = (end - page) / kRunPages;
    if (runs > 0) whole.push_back({{s, g, page, page + kRunPages, part}, num_whole() + runs});
    if (const int64_t rest = page + runs * kRunPages; rest < end) {
      others.push_back({s, g, rest, end, part + runs});
    }
  }
};

// Softmaxes of the heads of all runs, not yet combined.
struct Partials {
  const DecodeCall& call;
  float* records;  // of each run: largest, total and out of the heads of its group

  // Runs end on lines of their own: threads write to neighbours at the same time.
  static int64_t record(const DecodeCall& call) {
    constexpr int64_t kLine = 16;
    return (call.group * (call.D + 2) + kLine - 1) / kLine * kLine;
  }
  RunSoftmax of(int64_t part) const {
    float* own = records + part * record(call);
    return {own, own + call.group, own + 2 * call.group};
  }
};

// Pages [begin, end) of a run of (s, g).
struct RunPages {
  int64_t s, g, begin, end;
  int32_t next;  // the page that its worker reads then
};

void attend_run(const DecodeCall& call,
                const std::vector<int64_t>& first,
                const RunPages& pages,
                KeyRange* ranges,
                char* scratch,
                const RunSoftmax& result) {
  const auto [s, g, begin, end, next] = pages;
  for (int64_t i = 0; i < call.group; ++i) {
    const int64_t from =
        std::max(first[s * call.H + g * call.group + i] * kPageTokens, call.first_key(s));
    ranges[i] = {std::max<int64_t>(from - begin * kPageTokens, 0),
                 std::min(call.length(s), end * kPageTokens) - begin * kPageTokens};
  }
  PageRun run = call.run(s, g, begin, end);
  run.values = call.a.values.const_data_ptr();
  run.ranges = ranges;
  run.next_page = next;
  const bool by_second_level = tensor::cpu_features().few_lines_to_first_level;
  const auto decode =
      by_second_level ? call.kernels.decode_through_second_level : call.kernels.decode;
  decode(run, result, scratch);
}

// Of a worker: the kernel's scratch, then the ranges of a group's heads.
int64_t worker_bytes(const DecodeCall& call) {
  return call.scratch_bytes() + Scratch::padded(call.range_bytes());
}

void attend_runs(const DecodeCall& call,
                 FirstPages& first,
                 const Runs& runs,
                 char* kernel_scratch,
                 const Partials& partials) {
  const int64_t num_tasks = runs.num_tasks(), num_workers = tensor::num_workers(num_tasks);
  tensor::run_tasks(num_tasks, [&](int64_t index, int64_t worker) {
    // Workers that go at the same speed take turns.
    const RunTask next = runs.task(std::min(index + num_workers, num_tasks - 1));
    const RunTask task = runs.task(index);
    char* const own = kernel_scratch + worker * worker_bytes(call);
    auto* ranges = reinterpret_cast<KeyRange*>(own + call.scratch_bytes());
    if (first.is_open[task.s * call.G + task.g]) first.search(call, task.s, task.g, own);
    int64_t part = task.part;
    for (int64_t n = task.begin; n < task.end; n = end_of_run(n), ++part) {
      const int64_t end = std::min(end_of_run(n), task.end);
      const int32_t then =
          end < task.end ? call.pages(task.s, task.g)[end] : call.pages(next.s, next.g)[next.begin];
      attend_run(call, first.page, {task.s, task.g, n, end, then}, ranges, own, partials.of(part));
    }
  });
}

// Combines the runs of one query in their order.
void combine(const DecodeCall& call,
             const Runs& runs,
             const Partials& partials,
             int64_t row,
             float* out,
             float* lse) {
  const int64_t h = row % call.H, i = h % call.group;
  const int64_t sg = row / call.H * call.G + h / call.group;
  const int64_t begin = runs.first_part[sg], end = runs.first_part[sg + 1];
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t part = begin; part < end; ++part) {
    highest = std::max(highest, partials.of(part).largest[i]);
  }
  std::fill_n(out, call.D, 0.0F);
  *lse = -std::numeric_limits<float>::infinity();
  double sum = 0;
  for (int64_t part = begin; part < end; ++part) {
    const RunSoftmax run = partials.of(part);
    if (run.total[i] == 0) continue;  // saw no key; NaN where a logit is
    const float weight = std::exp2(run.largest[i] - highest);
    sum += static_cast<double>(weight) * run.total[i];
    const float* values = run.out + i * call.D;
    for (int64_t d = 0; d < call.D; ++d) out[d] += weight * values[d];
  }
  if (sum == 0) return;
  for (int64_t d = 0; d < call.D; ++d) out[d] /= static_cast<float>(sum);
  *lse = static_cast<float>(highest * std::numbers::ln2 + std::log(sum));
}

// Rounds a row of f32 to the dtype of `to` (S, H, D).
void store_row(at::Tensor& to, int64_t row, const float* values) {
  const int64_t D = to.size(2);
  const auto store = [&](auto* rows) {
    using Value = std::remove_pointer_t<decltype(rows)>;
    for (int64_t d = 0; d < D; ++d) rows[row * D + d] = static_cast<Value>(values[d]);
  };
  switch (to.scalar_type()) {
    case at::kBFloat16:
      return store(to.mutable_data_ptr<at::BFloat16>());
    case at::kHalf:
      return store(to.mutable_data_ptr<at::Half>());
    default:
      return store(to.mutable_data_ptr<float>());
  }
}

}  // namespace

DecodeOutput decode(const DecodeArguments& arguments) {
  const at::Tensor& q = arguments.q;
  DecodeOutput result;
  result.out = tensor::empty_rows(q.sizes(), q.options());
  result.lse = tensor::empty_rows({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  result.start = tensor::empty_rows({q.size(0), q.size(1)}, q.options().dtype(at::kInt));
  if (q.numel() > 0) {
    const DecodeCall call(arguments);
    FirstPages first(call);
    const Runs runs(call, first);
    const int64_t num_parts = runs.num_parts();
    const int64_t record_floats = Partials::record(call);
    const int64_t workers_bytes = tensor::num_workers(runs.num_tasks()) * worker_bytes(call);
    const int64_t record_bytes = num_parts * record_floats * static_cast<int64_t>(sizeof(float));
    Scratch scratch(workers_bytes + Scratch::padded(record_bytes));
    char* const kernel_scratch = scratch.take(workers_bytes);
    const Partials partials{call, reinterpret_cast<float*>(scratch.take(record_bytes))};
    attend_runs(call, first, runs, kernel_scratch, partials);
    auto* lse = result.lse.mutable_data_ptr<float>();
    auto* start = result.start.mutable_data_ptr<int32_t>();
    constexpr int64_t kFewValues = 1 << 16;
    const bool many = num_parts * record_floats > kFewValues;
    run_tasks_if(many, call.S * call.H, [&](int64_t row, int64_t /*worker*/) {
      std::vector<float> out(call.D);
      combine(call, runs, partials, row, out.data(), lse + row);
      store_row(result.out, row, out.data());
      start[row] = static_cast<int32_t>(
          std::max(first.page[row] * kPageTokens, call.first_key(row / call.H)));
    });
  }
  return result;
}

}  // namespace reynard::attention::cpu
