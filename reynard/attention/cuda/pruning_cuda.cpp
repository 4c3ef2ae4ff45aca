#include "reynard/attention/cuda/attention_cuda.h"
#include "reynard/attention/cuda/bounds.h"
#include "reynard/attention/pruning.h"
#include "reynard/attention/scale.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <limits>

namespace reynard::attention::cuda {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t num_blocks(int64_t length, int64_t size) {
  return (length + size - 1) / size;
}

// (B, T, heads, D) -> (B, heads, ceil(T/size)) f32
at::Tensor norms_of(const at::Tensor& rows, int64_t size) {
  const at::Tensor x = rows.stride(3) == 1 || rows.size(3) == 1 ? rows : rows.contiguous();
  at::Tensor norms =
      at::empty({x.size(0), x.size(2), num_blocks(x.size(1), size)}, x.options().dtype(at::kFloat));
  block_norms(row_array(x),
              static_cast<int>(size),
              norms.data_ptr<float>(),
              c10::cuda::getCurrentCUDAStream());
  return norms;
}

// What the rules need of the whole call; f64 inputs (the reference) are measured in f32.
struct Search {
  at::Tensor q, query_sums, logit_bound;
  RowFloors floors;  // rows in f64
  std::span<const KeyPart> parts;
  double scale = 0;
  double log_tolerance = 0;  // of each part that prunes

  int64_t B() const { return q.size(0); }
  int64_t Tq() const { return q.size(1); }
  int64_t H() const { return q.size(2); }
  int64_t M() const { return num_blocks(Tq(), kQueryBlock); }
  bool measured() const { return !logit_bound.defined(); }
};

at::Tensor narrow_copy(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x.to(at::kFloat) : x;
}

// The logit bound of each head: (B, H) f32.
at::Tensor fixed_bounds(const Search& s) {
  return s.logit_bound.expand({s.B(), s.H()});
}

PruningTask task_of(const Search& s, const KeyPart& part, const at::Tensor& start) {
  PruningTask task;
  task.B = static_cast<int>(s.B()), task.Tq = static_cast<int>(s.Tq());
  task.H = static_cast<int>(s.H());
  task.Tk = static_cast<int>(part.k.size(1)), task.G = static_cast<int>(part.k.size(2));
  task.causal = part.causal;
  task.log_tolerance = s.log_tolerance;
  task.query_sums = s.query_sums.const_data_ptr<double>();
  task.start = start.data_ptr<int32_t>();
  return task;
}

// log sum_j exp(-c_j) of blocks of keys: (B, H, ceil(Tk/64)) f64.
at::Tensor masses_of(const Search& s, const at::Tensor& sums) {
  const int64_t Tk = sums.size(2);
  const at::Tensor masses =
      at::empty({s.B(), s.H(), num_blocks(Tk, kKeyBlock)}, sums.options().dtype(at::kDouble));
  block_masses(sums.const_data_ptr<double>(),
               static_cast<int>(s.B() * s.H()),
               static_cast<int>(Tk),
               masses.data_ptr<double>(),
               c10::cuda::getCurrentCUDAStream());
  return masses;
}

// The p-th part.
void search_tight(const Search& s, size_t p, const at::Tensor& start) {
  const KeyPart& part = s.parts[p];
  const at::Tensor sums = part.sums.contiguous();
  at::Tensor masses, factors, key_norms;
  if (p < s.floors.masses.size()) masses = s.floors.masses[p];
  if (!masses.defined()) masses = masses_of(s, sums);
  if (s.measured()) {
    if (p < s.floors.key_norms.size()) key_norms = s.floors.key_norms[p];
    if (!key_norms.defined()) key_norms = norms_of(narrow_copy(part.k), kKeyBlock);
    factors = s.floors.query_norms;
    if (!factors.defined()) factors = norms_of(narrow_copy(s.q), kQueryBlock);
  } else {
    factors = fixed_bounds(s).unsqueeze(-1).expand({s.B(), s.H(), s.M()}).contiguous();
  }
  const at::Tensor first_key =
      part.first_key.defined() ? part.first_key.contiguous() : at::Tensor();
  PruningTask task = task_of(s, part, start);
  task.key_sums = sums.const_data_ptr<double>();
  if (first_key.defined()) task.first_key = first_key.const_data_ptr<int32_t>();
  task.factors = factors.const_data_ptr<float>();
  task.factor_scale = s.measured() ? s.scale : 1;
  if (key_norms.defined()) task.key_norms = key_norms.const_data_ptr<float>();
  task.masses = masses.const_data_ptr<double>();
  task.floors = s.floors.rows.const_data_ptr<double>();
  raise_starts_tight(task, c10::cuda::getCurrentCUDAStream());
}

// First and last key that each query sees in a part: (B, Tq) i64 and (Tq) i64.
at::Tensor first_keys(const Search& s, const KeyPart& part) {
  const auto index = s.q.options().dtype(at::kLong);
  return part.first_key.defined() ? part.first_key.clamp_min(0).to(at::kLong)
                                  : at::zeros({s.B(), s.Tq()}, index);
}
at::Tensor last_keys(const Search& s, const KeyPart& part) {
  const int64_t Tk = part.k.size(1);
  const at::Tensor query = at::arange(s.Tq(), s.q.options().dtype(at::kLong));
  return part.causal ? query + (Tk - s.Tq()) : query * 0 + (Tk - 1);
}

// Keys that a query of the row's document can see in a part: (B, Tq) i64. A document begins where a
// query sees nothing before itself.
at::Tensor document_keys(const Search& s, const KeyPart& part) {
  const at::Tensor first = first_keys(s, part);
  if (!part.first_key.defined() || !part.causal) {
    return (part.k.size(1) - first.slice(1, 0, 1)).clamp_min(0).expand({s.B(), s.Tq()});
  }
  const at::Tensor last = last_keys(s, part);
  const at::Tensor document = (first >= last).to(at::kLong).cumsum(1);
  const at::Tensor visible = (last - first + 1).clamp_min(0);
  const at::Tensor largest = at::zeros({s.B(), s.Tq() + 1}, visible.options())
                                 .scatter_reduce(1, document, visible, "amax");
  return largest.gather(1, document);
}

// (B, X, Tq) -> (B, X, M): over the queries of a block.
at::Tensor over_blocks(const Search& s, const at::Tensor& rows, double padding, bool largest) {
  const at::Tensor padded = at::constant_pad_nd(rows, {0, s.M() * kQueryBlock - s.Tq()}, padding);
  const at::Tensor blocks = padded.unflatten(-1, {s.M(), kQueryBlock});
  return largest ? blocks.amax({-1}) : blocks.amin({-1});
}

// The smallest bias that the nearest key of any row of a block carries: (B, H, M) f64 <= 0.
at::Tensor nearest_bias(const Search& s) {
  at::Tensor nearest;
  for (const KeyPart& part : s.parts) {
    const at::Tensor last = last_keys(s, part);
    const at::Tensor sees = (first_keys(s, part) <= last).unsqueeze(1);
    at::Tensor bias = at::zeros({s.B(), s.H(), s.Tq()}, s.query_sums.options());
    if (part.sums.defined() && part.k.size(1) > 0) {
      bias = s.query_sums - part.sums.index_select(2, last.clamp_min(0));
    }
    bias = at::where(sees, bias, at::full_like(bias, -kInfinity));
    nearest = nearest.defined() ? at::maximum(nearest, bias) : bias;
  }
  nearest = at::where(nearest == -kInfinity, at::zeros_like(nearest), nearest).clamp_max(0);
  return over_blocks(s, nearest, 0, /*largest=*/false);
}

// Largest |scale q.k| of each head over all parts: (B, H) f64.
at::Tensor published_bounds(const Search& s) {
  if (!s.measured()) return fixed_bounds(s).to(at::kDouble);
  at::Tensor key;
  for (const KeyPart& part : s.parts) {
    if (part.k.size(1) == 0) continue;
    const at::Tensor norms = norms_of(narrow_copy(part.k), kKeyBlock).amax({-1});
    const at::Tensor heads = norms.repeat_interleave(s.H() / part.k.size(2), 1);
    key = key.defined() ? at::maximum(key, heads) : heads;
  }
  if (!key.defined())
    return at::zeros({s.B(), s.H()}, s.query_sums.options());  // there are no keys
  const at::Tensor query = norms_of(narrow_copy(s.q), kQueryBlock).amax({-1});
  return (query.to(at::kDouble) * key.to(at::kDouble)) * s.scale;
}

// What the published rule compares decays with: (B, H, M) f64.
at::Tensor thresholds_of(const Search& s) {
  at::Tensor keys;
  for (const KeyPart& part : s.parts) {
    const at::Tensor count = document_keys(s, part);
    keys = keys.defined() ? keys + count : count;
  }
  const at::Tensor block_keys =
      over_blocks(s, keys.to(at::kDouble).unsqueeze(1), 1, /*largest=*/true).clamp_min(1);
  return (s.log_tolerance - published_bounds(s) * 2).unsqueeze(-1) - at::log(block_keys) +
         nearest_bias(s);
}

void search_published(const Search& s,
                      const KeyPart& part,
                      const at::Tensor& thresholds,
                      const at::Tensor& start) {
  const at::Tensor sums = part.sums.contiguous();
  const at::Tensor first_key =
      part.first_key.defined() ? part.first_key.contiguous() : at::Tensor();
  PruningTask task = task_of(s, part, start);
  task.key_sums = sums.const_data_ptr<double>();
  if (first_key.defined()) task.first_key = first_key.const_data_ptr<int32_t>();
  if (thresholds.defined()) {
    task.thresholds = thresholds.const_data_ptr<double>();
  } else {
    task.logit_bounds = s.logit_bound.const_data_ptr<float>();
    task.bound_stride = s.logit_bound.dim() == 1 ? 0 : task.H;
  }
  raise_starts_published(task, c10::cuda::getCurrentCUDAStream());
}

}  // namespace

std::vector<at::Tensor> pruned_starts(const at::Tensor& q,
                                      const at::Tensor& query_sums,
                                      std::span<const KeyPart> parts,
                                      const at::Tensor& logit_bound,
                                      const AttentionOptions& options,
                                      const RowFloors& floors) {
  const c10::cuda::CUDAGuard device(q.device());
  const bool tight = options.rule == PruningRule::kTight;
  int64_t num_biased = 0;
  for (const KeyPart& part : parts) {
    if (part.sums.defined()) ++num_biased;
  }
  Search s = {.q = q,
              .query_sums = query_sums.contiguous(),
              .logit_bound = logit_bound,
              .floors = floors,
              .parts = parts};
  if (tight) s.floors.rows = floors.rows.to(at::kDouble).contiguous();
  s.scale = effective_scale(options.scale, q.size(3));
  s.log_tolerance = options.log_pruning_tolerance -
                    std::log(static_cast<double>(std::max<int64_t>(num_biased, 1)));
  at::Tensor thresholds;
  // The common case needs no tensors of its own: the kernel knows the thresholds.
  const bool plain = parts.size() == 1 && parts[0].causal && !parts[0].first_key.defined();
  if (plain && logit_bound.defined()) {
    s.logit_bound = logit_bound.contiguous();
  } else if (!tight) {
    thresholds = thresholds_of(s).contiguous();
  }
  std::vector<at::Tensor> starts;
  for (size_t p = 0; p < parts.size(); ++p) {
    const KeyPart& part = parts[p];
    const bool searched = part.sums.defined() && part.k.size(1) > 0 && q.numel() > 0;
    const at::Tensor start = searched && !part.first_key.defined()
                                 ? at::empty({s.B(), s.H(), s.M()}, q.options().dtype(at::kInt))
                                 : first_visible(q, part);
    if (searched) {
      if (tight) {
        search_tight(s, p, start);
      } else {
        search_published(s, part, thresholds, start);
      }
    }
    starts.push_back(start);
  }
  return starts;
}

}  // namespace reynard::attention::cuda
