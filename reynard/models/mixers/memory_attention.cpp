#include "reynard/models/mixers/memory_attention.h"

#include "reynard/attention/bias.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/knn/search.h"
#include "reynard/models/batch_memory.h"
#include "reynard/models/decoder.h"
#include "reynard/models/mixers/top_k_attention.h"
#include "reynard/models/state.h"
#include "reynard/tensor/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

namespace reynard::models {

namespace {

// Positions start in every context; a memory layer without positions has no RoPE at all.
DecoderConfig of_layer(DecoderConfig config, bool has_memory) {
  config.attention.rope = config.attention.rope && (!has_memory || config.memory.positions);
  if (!has_memory) config.memory.temperature_max = 0;
  return config;
}

// Keys that every query sees.
attention::KeyPart whole_part(const at::Tensor& k, const at::Tensor& v, const at::Tensor& sums) {
  return {.k = k, .v = v, .sums = sums, .first_key = {}, .causal = false};
}

// The first token of those from `first` on that a memory holds when a context begins.
int64_t oldest_kept(int64_t first, int64_t begin, int64_t capacity) {
  if (capacity == Decoder::kNoMemory) return begin;
  return capacity > 0 ? std::max(first, begin - capacity) : first;
}

at::Tensor narrowed(const at::Tensor& t, int64_t dim, int64_t begin, int64_t size) {
  return t.defined() ? t.narrow(dim, begin, size) : t;
}

// Rows of a context that documents begin in: first_key (N) i32 of the batch as first keys within
// its context, (rows, contexts, L).
at::Tensor context_first_keys(const at::Tensor& first_key, int64_t rows, int64_t contexts) {
  const int64_t N = first_key.size(0), L = N / (rows * contexts);
  const at::Tensor begins = at::arange(0, N, L, first_key.options()).unsqueeze(1);
  return (first_key.view({rows * contexts, L}) - begins).view({rows, contexts, L});
}

// Contexts that context u of a pack sees, itself included (LongLLaMA's rule, crossbatch.h).
int64_t visible_contexts(int64_t u, const Crossbatch& crossbatch) {
  const int64_t most = crossbatch.contexts * crossbatch.documents;
  const int64_t others = std::max<int64_t>(crossbatch.contexts - 1, 1);
  const int64_t step = (most + others - 1) / others;
  const int64_t in_pack = u % crossbatch.contexts;
  const int64_t wanted = crossbatch.contexts > 1 ? std::min(in_pack * step + 1, most) : most;
  return std::min(wanted, u + 1);
}

}  // namespace

MemoryAttentionMixer::MemoryAttentionMixer(const DecoderConfig& config,
                                           Initializer& initializer,
                                           int64_t layer)
    : attention_(of_layer(config, config.is_memory_layer(layer)), initializer),
      memory_(config.memory),
      has_memory_(config.is_memory_layer(layer)) {
  if (has_memory_ && memory_.merge == MemoryMerge::kGated) {
    gate_ = initializer.bias(config.attention.num_heads);
  }
}

void MemoryAttentionMixer::parameters(const ParameterVisitor& visit) {
  attention_.parameters(visit);
  if (gate_.value.defined()) visit("attn.memory_gate", gate_);
}

MemoryAttentionMixer::Inputs MemoryAttentionMixer::inputs(const at::Tensor& x,
                                                          const Ragged& ragged,
                                                          int64_t layer) const {
  Inputs in{.p = attention_.project(x, ragged, layer), .memory_k = {}, .sums = {}, .bound = {}};
  in.memory_k = in.p.k;
  attention_.rotate(in.p, ragged.positions);
  in.bound = attention_.pruning_bound(in.p);
  if (in.p.log_gate.defined() && has_memory_ && ragged.states.empty()) {
    // Where distance decays the memory, a context's gates act on what came before it.
    in.sums = attention::gate_sums(in.p.log_gate.unsqueeze(0),
                                   decays() ? at::Tensor() : ragged.first_key.unsqueeze(0));
  }
  return in;
}

at::Tensor MemoryAttentionMixer::forward(const at::Tensor& x,
                                         const Ragged& ragged,
                                         int64_t layer,
                                         Observer* observer) {
  const Inputs in = inputs(x, ragged, layer);
  const bool alone =
      !has_memory_ || (!ragged.crossbatch && ragged.windows.size() + 1 == ragged.bounds.size());
  if (ragged.states.empty() && alone) {
    attention_.leave_carries(in.p, ragged, layer);
    return attention_.output(attention_.attend(in.p, ragged, layer, observer), in.p);
  }
  if (observer != nullptr && observer->wants(layer)) {
    observer->attention(layer, view(in, ragged));
  }
  if (!ragged.states.empty()) {
    return attention_.output(attend_states(in, ragged, layer), in.p);
  }
  if (!ragged.crossbatch) return attention_.output(attend_windows(in, ragged), in.p);
  return attention_.output(ragged.crossbatch->rule == CrossbatchRule::kRows
                               ? attend_rows(in, ragged, layer)
                               : attend_packs(in, ragged),
                           in.p);
}

double MemoryAttentionMixer::logit_factor(int64_t memory_keys) const {
  const int64_t n = memory_.log_scale_keys;
  if (n == 0 || memory_keys <= n) return 1;
  return std::log(static_cast<double>(memory_keys)) / std::log(static_cast<double>(n));
}

AttentionView MemoryAttentionMixer::view(const Inputs& in, const Ragged& ragged) const {
  AttentionView view{.q = in.p.q,
                     .k = in.p.k,
                     .log_gate = in.p.log_gate,
                     .start = {},
                     .first_key = ragged.first_key};
  if (ragged.states.empty() && !ragged.crossbatch &&
      attention_.options().log_pruning_tolerance == 0) {
    const int64_t N = in.p.q.size(0), H = in.p.q.size(1);
    view.start = at::zeros({H, (N + attention::kQueryBlock - 1) / attention::kQueryBlock},
                           ragged.first_key.options());
  }
  if (!has_memory_ || !ragged.states.empty() || ragged.crossbatch) return view;
  if (memory_.log_scale_keys > 0) view.q = in.p.q.clone();
  const at::Tensor first = at::empty({in.p.q.size(0)}, at::kInt), begins = at::empty_like(first);
  for (const Window& window : ragged.windows) {
    const int64_t size = window.end - window.begin;
    const int64_t oldest =
        oldest_kept(ragged.bounds[window.sequence], window.begin, store_.capacity);
    first.narrow(0, window.begin, size).fill_(oldest);
    begins.narrow(0, window.begin, size).fill_(window.begin);
    if (const double factor = logit_factor(window.begin - oldest); factor != 1) {
      view.q.narrow(0, window.begin, size).mul_(factor);
    }
  }
  view.first_key = first.to(ragged.first_key.device());
  view.first_local = begins.to(view.first_key.device());
  view.top_k = memory_.top_k;
  if (!in.memory_k.is_same(in.p.k)) view.memory_k = in.memory_k;
  if (memory_.merge == MemoryMerge::kGated) view.memory_share = at::sigmoid(gate_.value);
  if (in.p.log_gate.defined() && !decays()) view.first_decayed = view.first_local;
  return view;
}

at::Tensor MemoryAttentionMixer::attend(const at::Tensor& q,
                                        const at::Tensor& query_sums,
                                        Keys keys,
                                        const at::Tensor& bound) const {
  std::vector<KeyPart> near = {keys.local}, far = std::move(keys.contexts);
  const bool search = keys.memory && selects(keys.memory->k.size(1));
  if (keys.memory && !search) far.push_back(*keys.memory);
  if (memory_.merge == MemoryMerge::kJoint) {
    near.insert(near.end(), far.begin(), far.end());
    far.clear();
  }
  const auto local = attention::attention(q, query_sums, near, bound, attention_.options());
  const at::Tensor far_sums = decays() ? query_sums : at::Tensor();
  attention::AttentionOutput memory;
  if (!far.empty()) {
    memory = attention::attention(q, far_sums, far, bound, attention_.options());
  }
  if (search) {
    const auto best = top_k_attention(q, far_sums, *keys.memory, memory_.top_k);
    memory = memory.out.defined() ? joined(memory, best) : best;
  }
  return memory.out.defined() ? merged(local, memory) : local.out;
}

at::Tensor MemoryAttentionMixer::merged(const attention::AttentionOutput& local,
                                        const attention::AttentionOutput& memory) const {
  if (memory_.merge == MemoryMerge::kJoint) return joined(local, memory).out;
  // An empty memory has no say.
  const at::Tensor open = at::isfinite(memory.lse).transpose(1, 2).unsqueeze(-1);
  const at::Tensor share = at::sigmoid(gate_.value).view({1, 1, -1, 1}) * open;
  const at::Tensor near = local.out.to(at::kFloat);
  return (near + share * (memory.out.to(at::kFloat) - near)).to(local.out.scalar_type());
}

std::optional<attention::KeyPart> MemoryAttentionMixer::batch_memory(
    const Ragged& ragged,
    int64_t layer,
    int64_t begin,
    int64_t size,
    const at::Tensor& before) const {
  const BatchMemory* memory = ragged.crossbatch->memory;
  if (memory == nullptr) return {};
  const BatchMemory::View view = memory->view(layer);
  if (view.size() == 0) return {};
  if (decays() && !view.sums.defined()) {
    throw Error(fmt::format(
        "checkpoint: the memory of layer {} has no gate sums, which memory.decay = \"distance\" "
        "needs; begin without it",
        layer));
  }
  KeyPart part = whole_part(view.k, view.v, view.sums);
  if (before.defined()) part.sums = view.sums - before;
  part.first_key = memory->first_key(layer, begin, size).to(view.k.device());
  return part;
}

at::Tensor MemoryAttentionMixer::attend_windows(const Inputs& in, const Ragged& ragged) const {
  std::vector<at::Tensor> outs;
  for (const Window& window : ragged.windows) {
    const auto rows = [&](const at::Tensor& t, int64_t begin, int64_t end) {
      return t.narrow(0, begin, end - begin).unsqueeze(0);
    };
    const auto sums = [&](int64_t begin, int64_t end) {
      return narrowed(in.sums, 2, begin, end - begin);
    };
    const KeyPart local{.k = rows(in.p.k, window.begin, window.end),
                        .v = rows(in.p.v, window.begin, window.end),
                        .sums = sums(window.begin, window.end),
                        .first_key = {}};
    const int64_t first =
        oldest_kept(ragged.bounds[window.sequence], window.begin, store_.capacity);
    Keys keys{.local = local, .contexts = {}, .memory = {}};
    if (first < window.begin) {
      keys.memory = whole_part(rows(in.memory_k, first, window.begin),
                               rows(in.p.v, first, window.begin),
                               decays() ? sums(first, window.begin) : at::Tensor());
    }
    at::Tensor q = rows(in.p.q, window.begin, window.end);
    if (const double factor = logit_factor(window.begin - first); factor != 1) q = q * factor;
    outs.push_back(attend(q, local.sums, keys, in.bound));
  }
  return at::cat(outs, 1).squeeze(0);
}

at::Tensor MemoryAttentionMixer::attend_rows(const Inputs& in,
                                             const Ragged& ragged,
                                             int64_t layer) const {
  const Crossbatch& cross = *ragged.crossbatch;
  const int64_t b = cross.rows, n = cross.contexts, T = in.p.q.size(0) / b, L = T / n;
  const auto grid = [&](const at::Tensor& t) { return t.reshape({b, T, t.size(1), t.size(2)}); };
  // (b, d, ...): rows i .. i + d - 1 of t (b, ...), around its end. With the first rows behind the
  // last, contiguous, these are views that overlap.
  const auto documents = [&](at::Tensor t) {
    if (cross.stop_gradient) t = t.detach();
    const at::Tensor all = at::cat({t, t.narrow(0, 0, cross.documents - 1)}).contiguous();
    return all.unfold(0, cross.documents, 1).movedim(-1, 1);
  };
  const at::Tensor q = grid(in.p.q), k = grid(in.p.k), v = grid(in.p.v), far = grid(in.memory_k);
  const at::Tensor first_key = context_first_keys(ragged.first_key, b, n);
  const int64_t H = q.size(2);
  at::Tensor sums;  // (b, H, T), of a gate that decays the memory from the row's begin
  if (in.sums.defined()) sums = in.sums.view({H, b, T}).transpose(0, 1);
  if (sums.defined() && decays()) {
    const at::Tensor ends = sums.narrow(2, T - 1, 1).narrow(0, 0, b - 1);
    sums = sums - at::cat({at::zeros({1, H, 1}, sums.options()), ends});
  }
  std::vector<at::Tensor> outs;
  for (int64_t c = 0; c < n; ++c) {
    // Sums from the context's begin, so that other documents lie where the own one does.
    at::Tensor own_sums = narrowed(sums, 2, c * L, L), before, far_sums;
    if (decays() && c > 0) {
      before = sums.narrow(2, c * L - 1, 1);
      own_sums = own_sums - before;
      far_sums = documents(sums.narrow(2, 0, c * L) - before).transpose(1, 2).flatten(2);
    }
    const KeyPart local{.k = k.narrow(1, c * L, L),
                        .v = v.narrow(1, c * L, L),
                        .sums = own_sums,
                        .first_key = first_key.select(1, c)};
    Keys keys{.local = local, .contexts = {}, .memory = {}};
    if (c >= cross.memory_from_context) keys.memory = batch_memory(ragged, layer, c * L, L, before);
    if (c > 0) {
      keys.contexts = {whole_part(documents(far.narrow(1, 0, c * L)).flatten(1, 2),
                                  documents(v.narrow(1, 0, c * L)).flatten(1, 2),
                                  far_sums)};
      if (cross.padding.defined()) {
        keys.contexts[0].first_key =
            cross.padding.clamp_max(c * L).unsqueeze(1).expand({b, L}).contiguous();
      }
    }
    outs.push_back(attend(q.narrow(1, c * L, L), own_sums, keys, in.bound));
  }
  if (cross.memory != nullptr) {
    cross.memory->stage(layer, grid(in.memory_k), v, decays() ? sums : at::Tensor());
  }
  return at::cat(outs, 1).view({b * T, H, q.size(3)});
}

at::Tensor MemoryAttentionMixer::attend_packs(const Inputs& in, const Ragged& ragged) const {
  const Crossbatch& cross = *ragged.crossbatch;
  const int64_t U = cross.rows * cross.contexts, L = in.p.q.size(0) / U, H = in.p.q.size(1);
  const int64_t range = std::min(cross.contexts * cross.documents, U) - 1;
  const auto grid = [&](const at::Tensor& t) { return t.reshape({U, L, t.size(1), t.size(2)}); };
  // `range` unseen contexts before the first: context u - j is then row range - j + u, a view.
  const auto padded = [&](at::Tensor t) {
    if (cross.stop_gradient) t = t.detach();
    std::vector<int64_t> sizes = t.sizes().vec();
    sizes[0] = range;
    return at::cat({at::zeros(sizes, t.options()), t});
  };
  at::Tensor sums;  // (U, H, L)
  if (in.sums.defined()) sums = in.sums.view({H, U, L}).transpose(0, 1);
  const at::Tensor v = grid(in.p.v);
  const at::Tensor far_k = padded(grid(in.memory_k)), far_v = padded(v);
  const at::Tensor far_sums = decays() ? padded(sums) : at::Tensor();
  const KeyPart local{
      .k = grid(in.p.k),
      .v = v,
      .sums = sums,
      .first_key = context_first_keys(ragged.first_key, cross.rows, cross.contexts).view({U, L})};
  Keys keys{.local = local, .contexts = {}, .memory = {}};
  for (int64_t j = 1; j <= range; ++j) {
    std::vector<int32_t> first(U);
    for (int64_t u = 0; u < U; ++u) {
      first[u] = static_cast<int32_t>(j < visible_contexts(u, cross) ? 0 : L);
    }
    KeyPart part = whole_part(far_k.narrow(0, range - j, U),
                              far_v.narrow(0, range - j, U),
                              narrowed(far_sums, 0, range - j, U));
    part.first_key =
        at::tensor(first, at::kInt).to(v.device()).unsqueeze(1).expand({U, L}).contiguous();
    keys.contexts.push_back(part);
  }
  return attend(grid(in.p.q), sums, keys, in.bound).view({U * L, H, in.p.q.size(2)});
}

at::Tensor MemoryAttentionMixer::attend_states(const Inputs& in,
                                               const Ragged& ragged,
                                               int64_t layer) const {
  if (ragged.windows.size() == ragged.states.size()) {
    return attend_states(in.p, ragged.bounds, ragged.states, layer);
  }
  // Contexts end in this call: one after the other.
  std::vector<at::Tensor> outs;
  for (const Window& window : ragged.windows) {
    const int64_t size = window.end - window.begin;
    const auto rows = [&](const at::Tensor& t) { return narrowed(t, 0, window.begin, size); };
    const Projections p{.q = rows(in.p.q),
                        .k = rows(in.p.k),
                        .v = rows(in.p.v),
                        .log_gate = rows(in.p.log_gate),
                        .raw_k = rows(in.p.raw_k),
                        .raw_v = rows(in.p.raw_v),
                        .output_gate = {}};
    outs.push_back(attend_states(
        p, std::array<int64_t, 2>{0, size}, std::array{ragged.states[window.sequence]}, layer));
  }
  return at::cat(outs);
}

at::Tensor MemoryAttentionMixer::attend_states(Projections p,
                                               std::span<const int64_t> bounds,
                                               std::span<SequenceState* const> states,
                                               int64_t layer) const {
  std::vector<at::Tensor> q;
  for (std::size_t s = 0; s < states.size(); ++s) {
    if (states[s]->cache(layer).length() == memory_.window) start_window(*states[s], layer);
    const double factor = logit_factor(states[s]->memory(layer).size());
    const at::Tensor rows = p.q.narrow(0, bounds[s], bounds[s + 1] - bounds[s]);
    q.push_back(factor == 1 ? rows : rows * factor);
  }
  if (memory_.log_scale_keys > 0) p.q = at::cat(q);
  const attention::PagedOutput near = attention_.attend_to_states(p, bounds, states, layer);
  std::vector<at::Tensor> outs;
  for (std::size_t s = 0; s < states.size(); ++s) {
    const int64_t begin = bounds[s], size = bounds[s + 1] - begin;
    const at::Tensor local = near.out.narrow(0, begin, size).unsqueeze(0);
    const LayerMemory& memory = states[s]->memory(layer);
    if (!memory.failure().empty()) {
      outs.push_back(at::full_like(local, std::numeric_limits<double>::quiet_NaN()));
      continue;
    }
    if (memory.size() == 0) {
      outs.push_back(local);
      continue;
    }
    at::Tensor query_sums;
    const at::Device device = p.q.device();
    if (decays()) {
      query_sums = (states[s]->gate_sums(layer).slice(1, -size) + memory.window_sums().unsqueeze(1))
                       .unsqueeze(0)
                       .to(device);
    }
    const auto far = attend_memory(p.q.narrow(0, begin, size).unsqueeze(0), query_sums, memory);
    const at::Tensor lse = near.lse.narrow(1, begin, size).unsqueeze(0).to(device);
    outs.push_back(merged({.out = local, .lse = lse, .start = {}}, far));
  }
  return at::cat(outs, 1).squeeze(0);
}

attention::AttentionOutput MemoryAttentionMixer::attend_memory(const at::Tensor& q,
                                                               const at::Tensor& query_sums,
                                                               const LayerMemory& memory) const {
  if (selects(memory.size())) return top_k_attention(q, query_sums, memory, memory_.top_k);
  attention::AttentionOutput all;
  for (const LayerMemory::Piece& piece : memory.pieces()) {
    const knn::Entries entries = memory.entries(piece);
    KeyPart part = whole_part(entries.keys.unsqueeze(0), entries.values.unsqueeze(0), {});
    if (decays()) {
      part.sums = memory.sums().narrow(1, piece.begin, piece.size).unsqueeze(0).to(q.device());
    }
    const auto own =
        attention::attention(q, query_sums, std::span(&part, 1), {}, attention_.options());
    // Pieces are joined in f32; whoever joins them with the local context rounds.
    all = all.out.defined() ? joined(all, own)
                            : attention::AttentionOutput{
                                  .out = own.out.to(at::kFloat), .lse = own.lse, .start = {}};
  }
  return all;
}

void MemoryAttentionMixer::start_window(SequenceState& state, int64_t layer) const {
  const attention::LayerCache& cache = state.cache(layer);
  if (has_memory_ && store_.capacity != Decoder::kNoMemory && cache.length() > 0) {
    std::vector<at::Tensor> keys, values;
    for (int64_t g = 0; g < cache.num_kv_heads(); ++g) {
      const attention::LayerCache::Gathered head = cache.gather(g);
      keys.push_back(head.k);
      values.push_back(head.v);
    }
    const at::Tensor positions = at::arange(cache.length(), keys[0].options().dtype(at::kLong));
    state.memory(layer).add(attention_.unrotated(at::stack(keys, 1), positions),
                            at::stack(values, 1),
                            decays() ? state.gate_sums(layer) : at::Tensor(),
                            store_);
  }
  state.leave_window(layer);
}

void MemoryAttentionMixer::remember(const at::Tensor& x,
                                    const Ragged& ragged,
                                    int64_t layer,
                                    SequenceState& state) const {
  TORCH_INTERNAL_ASSERT(has_memory_ && !decays());
  const Projections p = attention_.project(x, ragged, layer);
  attention_.leave_carries(p, ragged, layer);
  if (store_.capacity == Decoder::kNoMemory) return;
  state.memory(layer).add(p.k, p.v, {}, store_);
}

}  // namespace reynard::models
