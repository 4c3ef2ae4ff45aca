#include "reynard/attention/cpu/attention_cpu.h"

#include "reynard/attention/cpu/path.h"
#include "reynard/attention/cpu/prepared_problem.h"
#include "reynard/attention/cpu/tight_rule.h"
#include "reynard/attention/log_mass.h"
#include "reynard/attention/operand_of.h"
#include "reynard/attention/pruning.h"
#include "reynard/attention/scale.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace reynard::attention::cpu {

namespace {

// Of a row that sees no key.
constexpr double kNoFloor = -std::numeric_limits<double>::infinity();

int64_t blocks(int64_t length, int64_t size) {
  return (length + size - 1) / size;
}

// The larger of two values; NaN once there stays, so that a comparison with it keeps the keys.
template <class Value>
Value sticky_max(Value a, Value b) {
  return b > a || b != b ? b : a;
}

// x (B, T, heads, D) as kernels read it: neighbouring dimensions side by side, f32 at most.
at::Tensor readable_rows(const at::Tensor& x) {
  const at::Tensor rows = x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous();
  return rows.scalar_type() == at::kDouble ? rows.to(at::kFloat) : rows;
}

// From the largest squared norm of some rows, slightly enlarged so that it is a bound.
float norm_bound(float square) {
  return std::sqrt(square) * kNormMargin;
}

// Bounds of the norms of each block of rows: (B, T, heads, D) -> (B, heads, ceil(T/size)) f32.
at::Tensor block_norms(const at::Tensor& x, int64_t size) {
  const int64_t B = x.size(0), T = x.size(1), heads = x.size(2), N = blocks(T, size);
  at::Tensor norms = at::empty({B, heads, N}, x.options().dtype(at::kFloat));
  const at::Tensor rows = readable_rows(x);
  const Operand from = operand_of(rows);
  const KernelTable& kernels = current_path().kernels(from.element);
  auto* out = norms.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, 16 / std::max<int64_t>(1, heads));
  at::parallel_for(0, B * N, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> largest(heads);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task % N, b = task / N;
      const Rows block = {.x = from,
                          .b = b,
                          .num_heads = heads,
                          .begin = n * size,
                          .end = std::min(T, (n + 1) * size),
                          .D = x.size(3)};
      kernels.largest_squares(block, largest.data());
      for (int64_t head = 0; head < heads; ++head) {
        out[(b * heads + head) * N + n] = norm_bound(largest[head]);
      }
    }
  });
  return norms;
}

// log sum_j exp(-c_j) over each key block: (B, H, Tk) f64 -> (B, H, N) f64. Formed relative to the
// block's last sum, so that it is finite wherever the sums are.
at::Tensor block_masses(const at::Tensor& sums) {
  const int64_t rows = sums.size(0) * sums.size(1), Tk = sums.size(2), N = blocks(Tk, kKeyBlock);
  at::Tensor masses = at::empty({sums.size(0), sums.size(1), N}, sums.options());
  const auto* c = sums.const_data_ptr<double>();
  auto* out = masses.mutable_data_ptr<double>();
  at::parallel_for(0, rows * N, 64, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const double* row = c + task / N * Tk;
      const int64_t first = task % N * kKeyBlock, last = std::min(first + kKeyBlock, Tk) - 1;
      double total = 0;
      for (int64_t j = first; j <= last; ++j) total += std::exp(row[last] - row[j]);
      out[task] = std::log(total) - row[last];
    }
  });
  return masses;
}

// What of a part's keys a rule asks for, besides the sums of gates.
struct KeyFacts {
  bool norms = false;   // largest norm of each key block: where no logit bound is given
  bool masses = false;  // log of each block's summed weights: the tight rule
};

// One part as the rules see it: contiguous tensors, bounds and block sums.
struct PartBounds {
  const KeyPart& part;
  int64_t Tq, Tk, N;
  at::Tensor sums, first_key, norms, masses, result;

  PartBounds(const at::Tensor& q, const KeyPart& p, KeyFacts facts)
      : part(p), Tq(q.size(1)), Tk(p.k.size(1)), N(blocks(Tk, kKeyBlock)) {
    result = first_visible(q, p);
    if (p.first_key.defined()) first_key = p.first_key.contiguous();
    if (facts.norms) norms = block_norms(p.k, kKeyBlock);
    if (!p.sums.defined()) return;
    sums = p.sums.contiguous();
    if (facts.masses) masses = block_masses(sums);
  }

  // Last key that a query sees, or -1.
  int64_t last_key(int64_t query) const { return part.causal ? Tk - Tq + query : Tk - 1; }
  int64_t first_of(int64_t b, int64_t query) const {
    return first_key.defined()
               ? std::max<int64_t>(first_key.const_data_ptr<int32_t>()[b * Tq + query], 0)
               : 0;
  }
  bool sees(int64_t b, int64_t query) const { return first_of(b, query) <= last_key(query); }
  const double* row_sums(int64_t bh) const { return sums.const_data_ptr<double>() + bh * Tk; }
  float largest_norm(int64_t bg) const {
    float largest = 0;
    for (int64_t n = 0; n < N; ++n) {
      largest = sticky_max(largest, norms.const_data_ptr<float>()[bg * N + n]);
    }
    return largest;
  }
};

// What the rules share over one call.
struct Rules {
  int64_t B = 0, Tq = 0, H = 0, M = 0;
  double scale = 0, tolerance = 0;
  at::Tensor query_sums, query_norms, bound, floors;
  std::vector<PartBounds> parts;

  int64_t group(const PartBounds& part) const { return H / part.part.k.size(2); }
  double fixed_bound(int64_t b, int64_t h) const {
    return bound.const_data_ptr<float>()[bound.dim() == 1 ? h : b * H + h];
  }
  double query_norm(int64_t bh, int64_t m) const {
    return query_norms.const_data_ptr<float>()[bh * M + m];
  }
  int64_t end_query(int64_t m) const { return std::min((m + 1) * kQueryBlock, Tq); }
};

// Without norms of queries.
Rules make_rules(const at::Tensor& q,
                 const at::Tensor& query_sums,
                 std::span<const KeyPart> parts,
                 const at::Tensor& logit_bound,
                 const AttentionOptions& options,
                 const at::Tensor& floors) {
  const int64_t Tq = q.size(1), D = q.size(3);
  const bool measured = !logit_bound.defined();
  Rules rules;
  rules.B = q.size(0), rules.Tq = Tq, rules.H = q.size(2), rules.M = blocks(Tq, kQueryBlock);
  rules.scale = effective_scale(options.scale, D);
  int64_t num_biased = 0;
  for (const KeyPart& part : parts) {
    rules.parts.emplace_back(
        q, part, KeyFacts{.norms = measured, .masses = options.rule == PruningRule::kTight});
    if (part.sums.defined()) ++num_biased;
  }
  // Each part that prunes gets an equal share of the tolerance.
  rules.tolerance = options.log_pruning_tolerance -
                    std::log(static_cast<double>(std::max<int64_t>(num_biased, 1)));
  if (query_sums.defined()) rules.query_sums = query_sums.contiguous();
  if (!measured) rules.bound = logit_bound.contiguous();
  if (floors.defined()) rules.floors = floors.to(at::kDouble).contiguous();
  return rules;
}

// The largest c_i - floor_i of the rows that may see keys before some key.
struct RowTop {
  const double *c, *floors;  // of the rows [next, end)
  int64_t next, end;
  double value = kNoFloor;

  void admit(const PartBounds& part, int64_t b, int64_t key) {
    for (; next < end && part.first_of(b, next) < key; ++next, ++c, ++floors) {
      // Where the nearest keys weigh nothing the floor of a row that sees keys is -inf: all stay.
      if (part.sees(b, next)) value = sticky_max(value, *c - *floors);
    }
  }
};

// The tight rule for one query block of one part.
class TightSearch {
 public:
  // floors: of the block's rows.
  TightSearch(const Rules& rules,
              const PartBounds& part,
              int64_t b,
              int64_t h,
              int64_t m,
              const double* floors)
      : part_(part), b_(b) {
    const int64_t bh = b * rules.H + h, first = m * kQueryBlock, end = rules.end_query(m);
    const double* c = rules.query_sums.const_data_ptr<double>() + bh * rules.Tq;
    keeps_all_ = keeps_all_keys(c[rules.Tq - 1] - part.row_sums(bh)[0], rules.tolerance);
    limit_ = rules.tolerance - kFloorMargin;
    first_ = part.first_of(b, first) / kKeyBlock;
    last_ = std::max<int64_t>(part.last_key(end - 1), 0) / kKeyBlock;
    masses_ = part.masses.const_data_ptr<double>() + bh * part.N;
    if (rules.bound.defined()) {
      factor_ = rules.fixed_bound(b, h);
    } else {
      factor_ = rules.scale * rules.query_norm(bh, m);
      const int64_t bg = b * part.part.k.size(2) + h / rules.group(part);
      norms_ = part.norms.const_data_ptr<float>() + bg * part.N;
    }
    top_ = {.c = c + first, .floors = floors, .next = first, .end = end};
  }

  // The first key block whose mass, with all before it, might exceed the tolerance of some row.
  int64_t first_block() {
    if (keeps_all_) return first_;
    const int64_t begin = skip_small_blocks();
    double mass = mass_before(begin);
    for (int64_t n = begin; n < last_; ++n) {
      top_.admit(part_, b_, (n + 1) * kKeyBlock);
      mass = log_add_exp(mass, mass_of(n));
      if (!drops(mass, top_)) return n;
    }
    return std::max(first_, last_);
  }

 private:
  // Log mass of a block, relative to exp(c_i).
  double mass_of(int64_t n) const { return factor_ * (norms_ ? norms_[n] : 1) + masses_[n]; }
  // NaN keeps the keys.
  bool drops(double mass, const RowTop& top) const { return mass + top.value <= limit_; }

  // Several blocks at a time, as long as all so far are dropped even if each has the mass of the
  // largest: the block after them. Powers and logarithms of each would take ten times as long.
  int64_t skip_small_blocks() {
    constexpr int64_t kBlocksAtOnce = 8;
    const double log_count = std::log(static_cast<double>(std::max<int64_t>(last_ - first_, 1)));
    int64_t n = first_;
    while (n < last_) {
      const int64_t end = std::min(n + kBlocksAtOnce, last_);
      double largest = largest_;
      for (int64_t i = n; i < end; ++i) largest = sticky_max(largest, mass_of(i));
      RowTop top = top_;
      top.admit(part_, b_, end * kKeyBlock);
      if (!drops(largest + log_count, top)) break;
      n = end, largest_ = largest, top_ = top;
    }
    return n;
  }

  // Of the blocks before n, which are at most largest_.
  double mass_before(int64_t n) const {
    constexpr double kNothing = -45;  // beside the largest, of 2^24 blocks
    double total = 0;
    for (int64_t i = first_; i < n; ++i) {
      const double below = mass_of(i) - largest_;
      if (below > kNothing) total += std::exp(below);
    }
    return total > 0 ? largest_ + std::log(total) : kNoMass;
  }

  const PartBounds& part_;
  int64_t b_, first_, last_;  // blocks that the first row may see, and that of the last row's key
  bool keeps_all_;
  double limit_, factor_;
  const double* masses_;
  const float* norms_ = nullptr;  // null: factor_ bounds the logits
  RowTop top_;
  double largest_ = kNoMass;
};

// Keys that a query of the row's document can see in a part, over all rows: (Tq) counts. A document
// begins where a query sees nothing before itself.
std::vector<int64_t> document_keys(const PartBounds& part, int64_t b) {
  std::vector<int64_t> counts(part.Tq);
  if (!part.first_key.defined() || !part.part.causal) {
    std::ranges::fill(counts, std::max<int64_t>(part.Tk - part.first_of(b, 0), 0));
    return counts;
  }
  int64_t begin = 0;
  int64_t largest = 0;
  for (int64_t i = 0; i <= part.Tq; ++i) {
    const bool starts = i == part.Tq || part.first_of(b, i) >= part.last_key(i);
    if (starts) {
      std::fill(counts.begin() + begin, counts.begin() + i, largest);
      begin = i;
      largest = 0;
    }
    if (i < part.Tq) largest = std::max(largest, part.last_key(i) - part.first_of(b, i) + 1);
  }
  return counts;
}

// The largest |scale q.k| of a head over all parts.
double published_bound(const Rules& rules, int64_t b, int64_t h) {
  if (rules.bound.defined()) return rules.fixed_bound(b, h);
  double query = 0;
  for (int64_t m = 0; m < rules.M; ++m) {
    query = sticky_max(query, rules.query_norm(b * rules.H + h, m));
  }
  double key = 0;
  for (const PartBounds& part : rules.parts) {
    const int64_t bg = b * part.part.k.size(2) + h / rules.group(part);
    key = sticky_max(key, static_cast<double>(part.largest_norm(bg)));
  }
  return rules.scale * query * key;
}

// The smallest bias that the nearest key of any row of the block carries: 0 where a row sees itself
// or a part without bias. A row's log-sum-exp is at least this minus the logit bound.
double nearest_bias(const Rules& rules, int64_t b, int64_t h, int64_t m) {
  const int64_t bh = b * rules.H + h;
  double smallest = 0;
  for (int64_t i = m * kQueryBlock; i < rules.end_query(m); ++i) {
    double nearest = kNoFloor;
    for (const PartBounds& part : rules.parts) {
      if (!part.sees(b, i)) continue;
      const double bias = part.sums.defined()
                              ? rules.query_sums.const_data_ptr<double>()[bh * rules.Tq + i] -
                                    part.row_sums(bh)[part.last_key(i)]
                              : 0;
      nearest = std::max(nearest, bias);
    }
    if (nearest != kNoFloor) smallest = std::min(smallest, nearest);
  }
  return smallest;
}

// The published rule (ACP) for one query block of one part: tiles whose largest decay, that of the
// first row and the last column, lies below the threshold.
int64_t published_first_block(
    const Rules& rules, const PartBounds& part, int64_t b, int64_t h, int64_t m, double threshold) {
  const int64_t bh = b * rules.H + h;
  const double c = rules.query_sums.const_data_ptr<double>()[bh * rules.Tq + m * kQueryBlock];
  const int64_t last_block =
      std::max<int64_t>(part.last_key(rules.end_query(m) - 1), 0) / kKeyBlock;
  int64_t n = part.first_of(b, m * kQueryBlock) / kKeyBlock;
  while (n < last_block && c - part.row_sums(bh)[(n + 1) * kKeyBlock - 1] < threshold) ++n;
  return n;
}

void raise_start(const Rules& rules, PartBounds& part, int64_t bh, int64_t m, int64_t block) {
  int32_t& start = part.result.mutable_data_ptr<int32_t>()[bh * rules.M + m];
  start = std::max(start, static_cast<int32_t>(block * kKeyBlock));
}

void apply_tight(Rules& rules) {
  at::parallel_for(0, rules.B * rules.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t bh = begin; bh < end; ++bh) {
      for (PartBounds& part : rules.parts) {
        if (!part.sums.defined() || part.Tk == 0) continue;
        for (int64_t m = 0; m < rules.M; ++m) {
          const double* floors =
              rules.floors.const_data_ptr<double>() + bh * rules.Tq + m * kQueryBlock;
          const int64_t block =
              TightSearch(rules, part, bh / rules.H, bh % rules.H, m, floors).first_block();
          raise_start(rules, part, bh, m, block);
        }
      }
    }
  });
}

void apply_published(Rules& rules) {
  for (int64_t b = 0; b < rules.B; ++b) {
    std::vector<int64_t> num_keys(rules.Tq, 0);
    for (const PartBounds& part : rules.parts) {
      const std::vector<int64_t> counts = document_keys(part, b);
      for (int64_t i = 0; i < rules.Tq; ++i) num_keys[i] += counts[i];
    }
    at::parallel_for(0, rules.H, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        const double bound = published_bound(rules, b, h);
        for (PartBounds& part : rules.parts) {
          if (!part.sums.defined() || part.Tk == 0) continue;
          for (int64_t m = 0; m < rules.M; ++m) {
            const int64_t keys = *std::max_element(num_keys.begin() + m * kQueryBlock,
                                                   num_keys.begin() + rules.end_query(m));
            const double threshold = rules.tolerance - 2 * bound -
                                     std::log(static_cast<double>(std::max<int64_t>(keys, 1))) +
                                     nearest_bias(rules, b, h, m);
            const int64_t block = published_first_block(rules, part, b, h, m, threshold);
            raise_start(rules, part, b * rules.H + h, m, block);
          }
        }
      }
    });
  }
}

}  // namespace

TightRule tight_rule(const at::Tensor& q,
                     const at::Tensor& query_sums,
                     const KeyPart& part,
                     const at::Tensor& logit_bound,
                     const AttentionOptions& options) {
  const auto rules = std::make_shared<Rules>(
      make_rules(q, query_sums, {&part, 1}, logit_bound, options, /*floors=*/{}));
  const bool measured = !logit_bound.defined();
  const at::Tensor readable = readable_rows(q);
  const KernelTable& kernels = current_path().kernels(operand_of(readable).element);
  if (measured) {
    rules->query_norms = at::empty({rules->B, rules->H, rules->M}, q.options().dtype(at::kFloat));
  }
  const auto find_start = [=, &kernels](int64_t b, int64_t h, int64_t m, const float* floors) {
    const int64_t first = m * kQueryBlock, end = rules->end_query(m), bh = b * rules->H + h;
    if (measured) {
      const Rows rows = {.x = operand_of(readable),
                         .b = b,
                         .first_head = h,
                         .begin = first,
                         .end = end,
                         .D = q.size(3)};
      float square = 0;
      kernels.largest_squares(rows, &square);
      rules->query_norms.mutable_data_ptr<float>()[bh * rules->M + m] = norm_bound(square);
    }
    double wide[kQueryBlock];
    std::copy_n(floors, end - first, wide);
    PartBounds& bounds = rules->parts[0];
    raise_start(*rules, bounds, bh, m, TightSearch(*rules, bounds, b, h, m, wide).first_block());
  };
  return {rules->parts[0].result, find_start};
}

std::vector<at::Tensor> pruned_starts(const at::Tensor& q,
                                      const at::Tensor& query_sums,
                                      std::span<const KeyPart> parts,
                                      const at::Tensor& logit_bound,
                                      const AttentionOptions& options,
                                      const RowFloors& floors) {
  Rules rules = make_rules(q, query_sums, parts, logit_bound, options, floors.rows);
  if (!logit_bound.defined()) rules.query_norms = block_norms(q, kQueryBlock);
  if (options.rule == PruningRule::kTight) {
    apply_tight(rules);
  } else {
    apply_published(rules);
  }
  std::vector<at::Tensor> starts;
  for (const PartBounds& part : rules.parts) starts.push_back(part.result);
  return starts;
}

}  // namespace reynard::attention::cpu
