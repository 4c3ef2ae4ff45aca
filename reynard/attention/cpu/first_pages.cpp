#include "reynard/attention/cpu/first_pages.h"

#include "reynard/attention/cache.h"
#include "reynard/attention/log_mass.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/parallel.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace reynard::attention::cpu {

namespace {

constexpr int64_t kFloorPages = 2;  // the pages nearest to the query, whose lse bounds its own

// What bounds the logits of one query: |scale q.k| <= bound(page).
struct LogitBound {
  const DecodeCall& call;
  double fixed = 0;   // from logit_bound, where it is given
  double factor = 0;  // scale |q|: times a key's norm

  LogitBound(const DecodeCall& c, int64_t s, int64_t h) : call(c) {
    if (call.logit_bound) {
      fixed = call.logit_bound[h];
      return;
    }
    double squares = 0;
    const float* q = call.query(s, h);
    for (int64_t d = 0; d < call.D; ++d) squares += std::pow(static_cast<double>(q[d]), 2);
    factor = std::abs(call.a.options.scale) * std::sqrt(squares);
  }
  double of_norm(float norm) const { return call.logit_bound ? fixed : factor * norm; }
  double of_page(int32_t page) const {
    return call.logit_bound ? fixed : of_norm(call.norms[page]);
  }
};

// Log of the mass that eviction dropped, at most, for this query; -inf when none.
double evicted_bound(const DecodeCall& call, const LogitBound& bound, int64_t s, int64_t h) {
  const HostSequence& sequence = call.sequences[s];
  if (!sequence.evicted_masses) return kNoMass;
  return bound.of_norm(sequence.evicted_norms[h / call.group]) + call.query_sum(s, h) +
         sequence.evicted_masses[h];
}

// First position that each head of a group attends to, in pages that lie there, before pruning.
int64_t first_held_page(const DecodeCall& call, int64_t s, int64_t g) {
  const int64_t held = std::max(call.first_key(s) / kPageTokens, call.sequences[s].num_evicted[g]);
  return std::min(held, call.num_pages(s) - 1);
}

int64_t nearest_page(const DecodeCall& call, int64_t s, int64_t g) {
  return std::max({call.num_pages(s) - kFloorPages, first_held_page(call, s, g), int64_t{0}});
}

// Lower bounds of the log-sum-exp of a group's queries: those of their nearest pages. (group)
std::vector<double> nearest_lse(const DecodeCall& call, int64_t s, int64_t g, char* scratch) {
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
    lse[i] = largest[i] * std::numbers::ln2 + std::log(static_cast<double>(total[i]));
  }
  return lse;
}

// Log of the mass that a page's keys have at most for this query.
double page_bound(
    const DecodeCall& call, const LogitBound& bound, int64_t s, int64_t h, int32_t page) {
  const double mass = call.masses[page * call.group + h % call.group];
  return bound.of_page(page) + call.query_sum(s, h) + mass;
}

// The most that the tight rule may drop where the queries' log-sum-exp is at least `floor`.
double droppable_mass(const DecodeCall& call, double floor) {
  return call.a.options.log_pruning_tolerance - kFloorMargin + floor;
}

// The tight rule: the first page from `n` on whose mass, with all before it, may matter.
int64_t tight_first_page(const DecodeCall& call, int64_t s, int64_t h, int64_t n, double floor) {
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

int64_t published_first_page(const DecodeCall& call, int64_t s, int64_t h, int64_t n) {
  const int32_t* pages = call.pages(s, h / call.group);
  const int64_t last = call.num_pages(s) - 1;
  const LogitBound bound(call, s, h);
  double largest = bound.of_norm(0);
  for (int64_t m = n; m <= last; ++m) {
    const double of_page = bound.of_page(pages[m]);
    if (!(of_page <= largest) && !std::isnan(largest)) largest = of_page;  // NaN stays, keeps all
  }
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
std::vector<int64_t> searched_pages(const DecodeCall& call, int64_t s, int64_t g, char* scratch) {
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
bool keep_first_held(const DecodeCall& call, int64_t s, int64_t g) {
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
    if (dropped <= droppable_mass(call, floor + kFloorMargin)) return false;
  }
  return true;
}

}  // namespace

FirstPages::FirstPages(const DecodeCall& call) : page(call.S * call.H), is_open(call.S * call.G) {
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

void FirstPages::search(const DecodeCall& call, int64_t s, int64_t g, char* scratch) {
  std::ranges::copy(searched_pages(call, s, g, scratch), of(call, s, g));
}

}  // namespace reynard::attention::cpu
