#include "reynard/attention/cpu/decode.h"

#include "reynard/attention/cache.h"
#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/path.h"
#include "reynard/attention/cpu/scratch.h"
#include "reynard/attention/log_mass.h"
#include "reynard/tensor/parallel.h"
#include "reynard/tensor/row_tensor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace reynard::attention::cpu {

namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr int64_t kRunPages = 16;   // 1024 keys: enough work for a thread, enough runs at 16k keys
constexpr int64_t kFloorPages = 2;  // the pages nearest to the query, whose lse bounds its own
constexpr double kMargin = 0.01;    // f32 rounding of logits and norms, in nats

Element element_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return Element::kBFloat16;
  return dtype == at::kHalf ? Element::kHalf : Element::kFloat;
}

// (S, H, D) in f32.
at::Tensor wide(const at::Tensor& q) {
  at::Tensor result = tensor::empty_rows(q.sizes(), at::kFloat);
  auto* to = result.mutable_data_ptr<float>();
  const auto widen = [&](const auto* from) {
    for (int64_t i = 0; i < q.numel(); ++i) to[i] = static_cast<float>(from[i]);
  };
  switch (q.scalar_type()) {
    case at::kBFloat16:
      widen(q.const_data_ptr<at::BFloat16>());
      break;
    case at::kHalf:
      widen(q.const_data_ptr<at::Half>());
      break;
    default:
      widen(q.const_data_ptr<float>());
  }
  return result;
}

// Tasks of so little work that waking a thread would take longer are done by the caller.
template <class Body>
void run_tasks_if(bool worthwhile, int64_t num_tasks, const Body& body) {
  if (worthwhile) return tensor::run_tasks(num_tasks, body);
  for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

// How many of a sequence's pages are gone from the front. Before its first key they need not be.
int64_t num_evicted(const HostSequence& sequence, const int32_t* pages) {
  const int64_t end = (sequence.length + kPageTokens - 1) / kPageTokens;
  const int64_t begin = std::clamp<int64_t>(sequence.first_key / kPageTokens, 0, end);
  return std::partition_point(pages + begin, pages + end, [](int32_t page) { return page < 0; }) -
         pages;
}

// The sequences of tensors.
std::vector<HostSequence> sequences_of(const DecodeArguments& a) {
  const int64_t S = a.page_table.size(0), G = a.page_table.size(1), H = a.q.size(1);
  const auto row = []<class Value>(const at::Tensor& t, int64_t place, const Value*& to) {
    to = t.defined() ? t.const_data_ptr<Value>() + place : nullptr;
  };
  const auto* table = a.page_table.const_data_ptr<int32_t>();
  std::vector<HostSequence> sequences(S);
  for (int64_t s = 0; s < S; ++s) {
    HostSequence& sequence = sequences[s];
    sequence.length = a.lengths.const_data_ptr<int64_t>()[s];
    if (a.first_key.defined()) sequence.first_key = a.first_key.const_data_ptr<int32_t>()[s];
    row(a.evicted_masses, s * H, sequence.evicted_masses);
    row(a.evicted_norms, s * G, sequence.evicted_norms);
    for (int64_t g = 0; g < G; ++g) {
      sequence.pages.push_back(std::exchange(table, table + a.page_table.size(2)));
      sequence.num_evicted.push_back(num_evicted(sequence, sequence.pages.back()));
    }
  }
  return sequences;
}

// Pointers and sizes of one call.
struct Call {
  const DecodeArguments& a;
  int64_t S, H, D;
  const std::vector<HostSequence> of_tensors;
  const std::vector<HostSequence>& sequences;
  int64_t G, group;
  at::Tensor wide_q;               // (S, H, D) f32
  std::vector<double> query_sums;  // (S, H)
  const double *sums, *masses;
  const float *norms, *logit_bound;
  const KernelTable& kernels;

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  explicit Call(const DecodeArguments& arguments)
      : a(arguments),
        S(a.q.size(0)),
        H(a.q.size(1)),
        D(a.q.size(2)),
        of_tensors(a.sequences.empty() ? sequences_of(a) : std::vector<HostSequence>()),
        sequences(a.sequences.empty() ? of_tensors : a.sequences),
        G(std::ssize(sequences[0].pages)),
        group(H / G),
        wide_q(wide(a.q)),
        query_sums(S * H),
        sums(data<double>(a.sums)),
        masses(data<double>(a.masses)),
        norms(data<float>(a.norms)),
        logit_bound(data<float>(a.logit_bound)),
        kernels(current_path().kernels(element_of(a.keys.scalar_type()))) {
    for (int64_t s = 0; sums && s < S; ++s) {
      const int64_t last = length(s) - 1;
      for (int64_t h = 0; last >= 0 && h < H; ++h) {
        const int32_t page = pages(s, h / group)[last / kPageTokens];
        query_sums[s * H + h] = page_sums(page, h)[last % kPageTokens];
      }
    }
  }

  template <class Value>
  static const Value* data(const at::Tensor& t) {
    return t.defined() ? t.const_data_ptr<Value>() : nullptr;
  }
  int64_t length(int64_t s) const { return sequences[s].length; }
  const int32_t* pages(int64_t s, int64_t g) const { return sequences[s].pages[g]; }
  const double* page_sums(int32_t page, int64_t h) const {
    return sums + (page * group + h % group) * kPageTokens;
  }
  double query_sum(int64_t s, int64_t h) const { return query_sums[s * H + h]; }
  const float* query(int64_t s, int64_t h) const {
    return wide_q.const_data_ptr<float>() + (s * H + h) * D;
  }
  int64_t first_key(int64_t s) const { return std::max<int64_t>(sequences[s].first_key, 0); }
  int64_t num_pages(int64_t s) const { return (length(s) + kPageTokens - 1) / kPageTokens; }
  // Of the kernel, for one worker.
  int64_t scratch_bytes() const { return Scratch::padded(kernels.decode_scratch_bytes(D, group)); }
  int64_t range_bytes() const { return group * static_cast<int64_t>(sizeof(KeyRange)); }
  bool pruned() const { return a.options.log_pruning_tolerance < 0 && sums != nullptr; }

  // Pages [begin, end) of (s, g); the caller sets ranges, and values where they are wanted.
  PageRun run(int64_t s, int64_t g, int64_t begin, int64_t end) const {
    PageRun run;
    run.keys = a.keys.const_data_ptr();
    run.element = element_of(a.keys.scalar_type());
    run.scales = a.scales.defined() ? a.scales.const_data_ptr<float>() : nullptr;
    run.D = D;
    run.group = group;
    run.sums = sums;
    run.pages = pages(s, g) + begin;
    run.num_pages = end - begin;
    run.q = query(s, g * group);
    run.scale = a.options.scale;
    run.query_sums = query_sums.data() + s * H + g * group;
    return run;
  }
};

// What bounds the logits of one query: |scale q.k| <= bound(page).
struct LogitBound {
  const Call& call;
  double fixed = -1;  // from logit_bound
  double factor = 0;  // scale |q|: times a key's norm

  LogitBound(const Call& c, int64_t s, int64_t h) : call(c) {
    if (call.logit_bound) {
      fixed = call.logit_bound[h];
      return;
    }
    double squares = 0;
    const float* q = call.query(s, h);
    for (int64_t d = 0; d < call.D; ++d) squares += std::pow(static_cast<double>(q[d]), 2);
    factor = std::abs(call.a.options.scale) * std::sqrt(squares);
  }
  double of_norm(float norm) const { return fixed >= 0 ? fixed : factor * norm; }
  double of_page(int32_t page) const { return fixed >= 0 ? fixed : of_norm(call.norms[page]); }
};

// Log of the mass that eviction dropped, at most, for this query; -inf when none.
double evicted_bound(const Call& call, const LogitBound& bound, int64_t s, int64_t h) {
  const HostSequence& sequence = call.sequences[s];
  if (!sequence.evicted_masses) return kNoMass;
  return bound.of_norm(sequence.evicted_norms[h / call.group]) + call.query_sum(s, h) +
         sequence.evicted_masses[h];
}

// First position that each head of a group attends to, in pages that lie there, before pruning.
int64_t first_held_page(const Call& call, int64_t s, int64_t g) {
  const int64_t held = std::max(call.first_key(s) / kPageTokens, call.sequences[s].num_evicted[g]);
  return std::min(held, call.num_pages(s) - 1);
}

int64_t nearest_page(const Call& call, int64_t s, int64_t g) {
  return std::max({call.num_pages(s) - kFloorPages, first_held_page(call, s, g), int64_t{0}});
}

// Lower bounds of the log-sum-exp of a group's queries: those of their nearest pages. (group)
std::vector<double> nearest_lse(const Call& call, int64_t s, int64_t g, char* scratch) {
  const int64_t end = call.num_pages(s), begin = nearest_page(call, s, g);
  PageRun run = call.run(s, g, begin, end);
  const KeyRange range = {std::max<int64_t>(call.first_key(s) - begin * kPageTokens, 0),
                          call.length(s) - begin * kPageTokens};
  const std::vector<KeyRange> ranges(call.group, range);
  std::vector<float> largest(call.group), total(call.group), out(call.group * call.D);
  run.ranges = ranges.data();
  call.kernels.decode(run, {largest.data(), total.data(), out.data()}, scratch);
  std::vector<double> lse(call.group);
  for (int64_t i = 0; i < call.group; ++i) {
    lse[i] = largest[i] * kLn2 + std::log(static_cast<double>(total[i]));
  }
  return lse;
}

// Log of the mass that a page's keys have at most for this query.
double page_bound(const Call& call, const LogitBound& bound, int64_t s, int64_t h, int32_t page) {
  const double mass = call.masses[page * call.group + h % call.group];
  return bound.of_page(page) + call.query_sum(s, h) + mass;
}

// The most that the tight rule may drop where the queries' log-sum-exp is at least `floor`.
double droppable_mass(const Call& call, double floor) {
  return call.a.options.log_pruning_tolerance - kMargin + floor;
}

// The tight rule: the first page from `n` on whose mass, with all before it, may matter.
int64_t tight_first_page(const Call& call, int64_t s, int64_t h, int64_t n, double floor) {
  const int32_t* pages = call.pages(s, h / call.group);
  const LogitBound bound(call, s, h);
  const double limit = droppable_mass(call, floor);
  double dropped = evicted_bound(call, bound, s, h);
  for (; n < call.num_pages(s) - 1; ++n) {
    dropped = log_add_exp(dropped, page_bound(call, bound, s, h, pages[n]));
    if (!(dropped <= limit)) break;  // NaN keeps the page
  }
  return n;
}

int64_t published_first_page(const Call& call, int64_t s, int64_t h, int64_t n) {
  const int32_t* pages = call.pages(s, h / call.group);
  const int64_t last = call.num_pages(s) - 1;
  const LogitBound bound(call, s, h);
  double largest = bound.of_norm(0);
  for (int64_t m = n; m <= last; ++m) largest = std::max(largest, bound.of_page(pages[m]));
  // Skipped keys weigh at most tolerance / T each, and share the tolerance with what was evicted.
  const double evicted = evicted_bound(call, bound, s, h);
  const double left =
      std::exp(call.a.options.log_pruning_tolerance) - std::exp(std::min(evicted + largest, 0.0));
  if (!(left > 0)) return n;
  const double threshold = std::log(left) - 2 * largest -
                           std::log(static_cast<double>(call.length(s) - call.first_key(s)));
  const double c = call.query_sum(s, h);
  while (n < last && c - call.page_sums(pages[n], h)[kPageTokens - 1] < threshold) ++n;
  return n;
}

// Searches the first page that each query of a group must read (docs/attention.md, pruning in
// decode). (group)
std::vector<int64_t> searched_pages(const Call& call, int64_t s, int64_t g, char* scratch) {
  const int64_t held = first_held_page(call, s, g);
  const bool tight = call.a.options.rule == PruningRule::kTight;
  const auto floors = tight ? nearest_lse(call, s, g, scratch) : std::vector<double>();
  std::vector<int64_t> first(call.group);
  for (int64_t i = 0; i < call.group; ++i) {
    const int64_t h = g * call.group + i;
    first[i] = tight ? tight_first_page(call, s, h, held, floors[i])
                     : published_first_page(call, s, h, held);
  }
  return first;
}

// Whether the tight rule keeps the first page that a group holds whatever the keys of the nearest
// pages are: these weigh at most what their bounds say.
bool keep_first_held(const Call& call, int64_t s, int64_t g) {
  if (call.a.options.rule != PruningRule::kTight) return false;
  const int32_t* pages = call.pages(s, g);
  const int32_t held = pages[first_held_page(call, s, g)];
  for (int64_t h = g * call.group; h < (g + 1) * call.group; ++h) {
    const LogitBound bound(call, s, h);
    double floor = kNoMass;
    for (int64_t n = nearest_page(call, s, g); n < call.num_pages(s); ++n) {
      floor = log_add_exp(floor, page_bound(call, bound, s, h, pages[n]));
    }
    const double dropped =
        log_add_exp(evicted_bound(call, bound, s, h), page_bound(call, bound, s, h, held));
    if (dropped <= droppable_mass(call, floor + kMargin)) return false;
  }
  return true;
}

// Where each query begins to read (docs/attention.md, pruning in decode).
struct FirstPages {
  std::vector<int64_t> page;  // (S, H): the first that is held, where nothing else was found
  std::vector<bool> is_open;  // (S * G): still to be searched, by whoever attends

  explicit FirstPages(const Call& call) : page(call.S * call.H), is_open(call.S * call.G) {
    std::vector<int64_t> wanted;  // (s, g) whose work cannot be divided without a search
    for (int64_t sg = 0; sg < call.S * call.G; ++sg) {
      const int64_t s = sg / call.G, g = sg % call.G;
      if (call.length(s) == 0) continue;
      const int64_t held = first_held_page(call, s, g);
      std::fill_n(of(call, s, g), call.group, held);
      if (!call.pruned()) continue;
      is_open[sg] = call.num_pages(s) - held <= kRunPages;
      if (!is_open[sg] && !keep_first_held(call, s, g)) wanted.push_back(sg);
    }
    tensor::run_tasks(std::ssize(wanted), [&](int64_t task, int64_t /*worker*/) {
      const int64_t bytes = call.scratch_bytes();
      Scratch scratch(bytes);
      search(call, wanted[task] / call.G, wanted[task] % call.G, scratch.take(bytes));
    });
  }

  std::vector<int64_t>::iterator of(const Call& call, int64_t s, int64_t g) {
    return page.begin() + s * call.H + g * call.group;
  }
  void search(const Call& call, int64_t s, int64_t g, char* scratch) {
    std::ranges::copy(searched_pages(call, s, g, scratch), of(call, s, g));
  }
};

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

  Runs(const Call& call, FirstPages& first) {
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
  const Call& call;
  float* records;  // of each run: largest, total and out of the heads of its group

  // Runs end on lines of their own: threads write to neighbours at the same time.
  static int64_t record(const Call& call) {
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

void attend_run(const Call& call,
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
  call.kernels.decode(run, result, scratch);
}

void attend_runs(const Call& call,
                 FirstPages& first,
                 const Runs& runs,
                 char* kernel_scratch,
                 const Partials& partials) {
  const int64_t worker_bytes = call.scratch_bytes() + Scratch::padded(call.range_bytes());
  const int64_t num_tasks = runs.num_tasks(), num_workers = tensor::num_workers(num_tasks);
  tensor::run_tasks(num_tasks, [&](int64_t index, int64_t worker) {
    // Workers that go at the same speed take turns.
    const RunTask next = runs.task(std::min(index + num_workers, num_tasks - 1));
    const RunTask task = runs.task(index);
    char* const own = kernel_scratch + worker * worker_bytes;
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
void combine(const Call& call,
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
  if (highest == *lse) return;
  double sum = 0;
  for (int64_t part = begin; part < end; ++part) {
    const RunSoftmax run = partials.of(part);
    if (run.largest[i] == *lse) continue;
    const float weight = std::exp2(run.largest[i] - highest);
    sum += static_cast<double>(weight) * run.total[i];
    const float* values = run.out + i * call.D;
    for (int64_t d = 0; d < call.D; ++d) out[d] += weight * values[d];
  }
  for (int64_t d = 0; d < call.D; ++d) out[d] /= static_cast<float>(sum);
  *lse = static_cast<float>(highest * kLn2 + std::log(sum));
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
    const Call call(arguments);
    FirstPages first(call);
    const Runs runs(call, first);
    const int64_t num_parts = runs.num_parts();
    const int64_t record_floats = Partials::record(call);
    const int64_t worker_bytes = call.scratch_bytes() + Scratch::padded(call.range_bytes());
    const int64_t workers_bytes = tensor::num_workers(num_parts) * worker_bytes;
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
