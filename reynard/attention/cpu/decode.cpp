#include "reynard/attention/cpu/decode.h"

#include "reynard/attention/cache.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace reynard::attention::cpu {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kRunPages = 16;   // 1024 keys: enough work for a thread, enough runs at 16k keys
constexpr int64_t kFloorPages = 2;  // the pages nearest to the query, whose lse bounds its own
constexpr double kMargin = 0.01;    // f32 rounding of logits and norms, in nats
constexpr int64_t kLargestHeadDim = 256;

// The softmax of some keys, not yet normalised: weights are relative to exp(largest).
struct Partial {
  float largest = kMinusInfinity;
  float total = 0;
  float out[kLargestHeadDim] = {};
};

// Pointers and sizes of one call.
template <class Scalar>
struct Call {
  const DecodeArguments& a;
  int64_t S, H, G, D, N, group;
  const Scalar* q;
  const Scalar* keys;
  const Scalar* values;
  const double* sums;
  const int32_t* table;
  const int64_t* lengths;
  float scale;

  explicit Call(const DecodeArguments& arguments)
      : a(arguments),
        S(a.q.size(0)),
        H(a.q.size(1)),
        G(a.page_table.size(1)),
        D(a.q.size(2)),
        N(a.page_table.size(2)),
        group(H / G),
        q(a.q.const_data_ptr<Scalar>()),
        keys(a.keys.const_data_ptr<Scalar>()),
        values(a.values.const_data_ptr<Scalar>()),
        sums(a.sums.defined() ? a.sums.const_data_ptr<double>() : nullptr),
        table(a.page_table.const_data_ptr<int32_t>()),
        lengths(a.lengths.const_data_ptr<int64_t>()),
        scale(static_cast<float>(a.options.scale)) {}

  const int32_t* pages(int64_t s, int64_t g) const { return table + (s * G + g) * N; }
  const double* page_sums(int32_t page, int64_t h) const {
    return sums + (page * group + h % group) * kPageTokens;
  }
  double query_sum(int64_t s, int64_t h) const {
    const int64_t last = lengths[s] - 1;
    return page_sums(pages(s, h / group)[last / kPageTokens], h)[last % kPageTokens];
  }
  int64_t first_key(int64_t s) const {
    return a.first_key.defined() ? std::max(a.first_key.const_data_ptr<int32_t>()[s], 0) : 0;
  }
  bool pruned() const { return a.options.log_pruning_tolerance < 0 && sums != nullptr; }
};

// Sixteen sums side by side: a fixed order that vectorises.
template <class Scalar>
float dot_product(const Scalar* a, const Scalar* b, int64_t D) {
  float lanes[16] = {};
  int64_t d = 0;
  for (; d + 16 <= D; d += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      lanes[lane] += static_cast<float>(a[d + lane]) * static_cast<float>(b[d + lane]);
    }
  }
  float sum = 0;
  for (; d < D; ++d) sum += static_cast<float>(a[d]) * static_cast<float>(b[d]);
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Logits of one query with the keys [begin, end) of a page.
template <class Scalar>
void page_logits(const Call<Scalar>& call,
                 int64_t s,
                 int64_t h,
                 int32_t page,
                 int64_t begin,
                 int64_t end,
                 float* logits) {
  const Scalar* q = call.q + (s * call.H + h) * call.D;
  const Scalar* k = call.keys + static_cast<int64_t>(page) * kPageTokens * call.D;
  const double query_sum = call.sums != nullptr ? call.query_sum(s, h) : 0;
  for (int64_t t = begin; t < end; ++t) {
    const float dot = dot_product(q, k + t * call.D, call.D);
    const double bias = call.sums != nullptr ? query_sum - call.page_sums(page, h)[t] : 0;
    logits[t] = call.scale * dot + static_cast<float>(bias);
  }
}

// Adds the keys [begin, end) of a page to a partial softmax.
template <class Scalar>
void add_page(const Call<Scalar>& call,
              int64_t s,
              int64_t h,
              int32_t page,
              int64_t begin,
              int64_t end,
              Partial& partial) {
  float logits[kPageTokens];
  page_logits(call, s, h, page, begin, end, logits);
  float largest = partial.largest;
  for (int64_t t = begin; t < end; ++t) largest = std::max(largest, logits[t]);
  if (largest == kMinusInfinity) return;
  const float keep = std::exp(partial.largest - largest);
  partial.largest = largest;
  partial.total *= keep;
  for (int64_t d = 0; d < call.D; ++d) partial.out[d] *= keep;
  const Scalar* v = call.values + static_cast<int64_t>(page) * kPageTokens * call.D;
  for (int64_t t = begin; t < end; ++t) {
    const float weight = std::exp(logits[t] - largest);
    partial.total += weight;
    for (int64_t d = 0; d < call.D; ++d) {
      partial.out[d] += weight * static_cast<float>(v[t * call.D + d]);
    }
  }
}

double log_add_exp(double a, double b) {
  const double high = std::max(a, b), low = std::min(a, b);
  return low == -std::numeric_limits<double>::infinity() ? high
                                                         : high + std::log1p(std::exp(low - high));
}

// What bounds the logits of one query: |scale q.k| <= bound(page).
template <class Scalar>
struct LogitBound {
  const Call<Scalar>& call;
  double fixed = -1;  // from logit_bound
  double factor = 0;  // scale |q|: times a key's norm

  LogitBound(const Call<Scalar>& c, int64_t s, int64_t h) : call(c) {
    if (call.a.logit_bound.defined()) {
      fixed = call.a.logit_bound.template const_data_ptr<float>()[h];
      return;
    }
    double squares = 0;
    const Scalar* q = call.q + (s * call.H + h) * call.D;
    for (int64_t d = 0; d < call.D; ++d) squares += std::pow(static_cast<double>(q[d]), 2);
    factor = call.a.options.scale * std::sqrt(squares);
  }
  double of_norm(float norm) const { return fixed >= 0 ? fixed : factor * norm; }
  double of_page(int32_t page) const {
    return fixed >= 0 ? fixed : of_norm(call.a.norms.template const_data_ptr<float>()[page]);
  }
};

// Log of the mass that eviction dropped, at most, for this query; -inf when none.
template <class Scalar>
double evicted_bound(const Call<Scalar>& call,
                     const LogitBound<Scalar>& bound,
                     int64_t s,
                     int64_t h) {
  if (!call.a.evicted_masses.defined()) return -std::numeric_limits<double>::infinity();
  const float norm =
      call.a.evicted_norms.template const_data_ptr<float>()[s * call.G + h / call.group];
  return bound.of_norm(norm) + call.query_sum(s, h) +
         call.a.evicted_masses.template const_data_ptr<double>()[s * call.H + h];
}

// Lower bound of the query's log-sum-exp: that of its nearest pages.
template <class Scalar>
double nearest_lse(const Call<Scalar>& call, int64_t s, int64_t h, int64_t first) {
  const int32_t* pages = call.pages(s, h / call.group);
  const int64_t last = (call.lengths[s] - 1) / kPageTokens;
  double lse = -std::numeric_limits<double>::infinity();
  for (int64_t n = std::max<int64_t>({last - kFloorPages + 1, first / kPageTokens, 0}); n <= last;
       ++n) {
    if (pages[n] < 0) continue;
    float logits[kPageTokens];
    const int64_t begin = std::max<int64_t>(first - n * kPageTokens, 0);
    const int64_t end = std::min(call.lengths[s] - n * kPageTokens, kPageTokens);
    page_logits(call, s, h, pages[n], begin, end, logits);
    for (int64_t t = begin; t < end; ++t) lse = log_add_exp(lse, logits[t]);
  }
  return lse;
}

// The first page that must be read (docs/attention.md, pruning in decode).
template <class Scalar>
int64_t first_page(const Call<Scalar>& call, int64_t s, int64_t h) {
  const int64_t first = call.first_key(s);
  const int32_t* pages = call.pages(s, h / call.group);
  const int64_t last = (call.lengths[s] - 1) / kPageTokens;
  int64_t n = first / kPageTokens;
  while (n < last && pages[n] < 0) ++n;
  if (!call.pruned()) return n;
  const LogitBound<Scalar> bound(call, s, h);
  const double tolerance = call.a.options.log_pruning_tolerance;
  const double c = call.query_sum(s, h);
  double dropped = evicted_bound(call, bound, s, h);
  if (call.a.options.rule == PruningRule::kTight) {
    const double limit = tolerance - kMargin + nearest_lse(call, s, h, first);
    for (; n < last; ++n) {
      const double mass =
          call.a.masses.template const_data_ptr<double>()[pages[n] * call.group + h % call.group];
      dropped = log_add_exp(dropped, bound.of_page(pages[n]) + c + mass);
      if (!(dropped <= limit)) break;  // NaN keeps the page
    }
    return n;
  }
  double largest = bound.of_norm(0);
  for (int64_t m = n; m <= last; ++m) largest = std::max(largest, bound.of_page(pages[m]));
  // Skipped keys weigh at most tolerance / T each, and share the tolerance with what was evicted.
  const double left = std::exp(tolerance) - std::exp(std::min(dropped + largest, 0.0));
  if (!(left > 0)) return n;
  const double threshold =
      std::log(left) - 2 * largest - std::log(static_cast<double>(call.lengths[s] - first));
  while (n < last && c - call.page_sums(pages[n], h)[kPageTokens - 1] < threshold) ++n;
  return n;
}

template <class Scalar>
void write_result(
    const Call<Scalar>& call, const Partial* partials, int64_t num_runs, Scalar* out, float* lse) {
  float largest = kMinusInfinity;
  for (int64_t r = 0; r < num_runs; ++r) largest = std::max(largest, partials[r].largest);
  if (largest == kMinusInfinity) {
    std::fill_n(out, call.D, static_cast<Scalar>(0));
    *lse = kMinusInfinity;
    return;
  }
  float total = 0;
  float sum[kLargestHeadDim] = {};
  for (int64_t r = 0; r < num_runs; ++r) {
    const float weight = std::exp(partials[r].largest - largest);
    total += weight * partials[r].total;
    for (int64_t d = 0; d < call.D; ++d) sum[d] += weight * partials[r].out[d];
  }
  for (int64_t d = 0; d < call.D; ++d) out[d] = static_cast<Scalar>(sum[d] / total);
  *lse = largest + std::log(total);
}

template <class Scalar>
void decode_rows(const DecodeArguments& arguments, DecodeOutput& result) {
  const Call<Scalar> call(arguments);
  const int64_t rows = call.S * call.H;
  const int64_t num_runs = (call.N + kRunPages - 1) / kRunPages;
  std::vector<int64_t> first(rows);
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool empty = call.lengths[row / call.H] == 0;
      first[row] = empty ? 0 : first_page(call, row / call.H, row % call.H);
    }
  });
  std::vector<Partial> partials(rows * num_runs);
  at::parallel_for(0, call.S * call.G * num_runs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t run = task % num_runs, s = task / num_runs / call.G,
                    g = task / num_runs % call.G;
      const int64_t length = call.lengths[s], first_key = call.first_key(s);
      const int64_t stop =
          std::min((run + 1) * kRunPages, (length + kPageTokens - 1) / kPageTokens);
      // Heads of the group inside the page loop: they share the page while it is in the cache.
      for (int64_t n = run * kRunPages; n < stop; ++n) {
        const int32_t page = call.pages(s, g)[n];
        const int64_t from = std::max<int64_t>(first_key - n * kPageTokens, 0);
        const int64_t to = std::min(length - n * kPageTokens, kPageTokens);
        if (page < 0 || from >= to) continue;
        for (int64_t h = g * call.group; h < (g + 1) * call.group; ++h) {
          const int64_t row = s * call.H + h;
          if (n >= first[row]) add_page(call, s, h, page, from, to, partials[row * num_runs + run]);
        }
      }
    }
  });
  auto* out = result.out.mutable_data_ptr<Scalar>();
  auto* lse = result.lse.mutable_data_ptr<float>();
  auto* start = result.start.mutable_data_ptr<int32_t>();
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      write_result(call, &partials[row * num_runs], num_runs, out + row * call.D, lse + row);
      start[row] =
          static_cast<int32_t>(std::max(first[row] * kPageTokens, call.first_key(row / call.H)));
    }
  });
}

}  // namespace

DecodeOutput decode(const DecodeArguments& arguments) {
  const at::Tensor& q = arguments.q;
  DecodeOutput result;
  result.out = at::empty(q.sizes(), q.options());
  result.lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  result.start = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kInt));
  if (q.numel() == 0) return result;
  AT_DISPATCH_SWITCH(
      q.scalar_type(),
      "reynard::decode",
      AT_DISPATCH_CASE(at::kFloat, [&] { decode_rows<scalar_t>(arguments, result); })
          AT_DISPATCH_CASE(at::kBFloat16, [&] { decode_rows<scalar_t>(arguments, result); })
              AT_DISPATCH_CASE(at::kHalf, [&] { decode_rows<scalar_t>(arguments, result); }));
  return result;
}

}  // namespace reynard::attention::cpu
