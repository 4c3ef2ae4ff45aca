#include "reynard/models/state.h"

#include "reynard/models/decoder.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace reynard::models {

namespace {

// How many carries there are up to `length`.
int64_t num_carries(const Carries& carries, int64_t length) {
  return std::ranges::upper_bound(carries, length, {}, &KeptCarry::length) - carries.begin();
}

// Rows of tokens begin + 1, begin + 2 ... of which those at page ends and the last few are kept. A
// view keeps all that it lies in, so these have two copies: rows at page ends stay as long as the
// text, the last ones go together.
class KeptRows {
 public:
  KeptRows(const at::Tensor& rows, int64_t begin, int64_t num_last) : begin_(begin) {
    if (!rows.defined()) return;
    const int64_t T = rows.size(0);
    if (T == 1) {
      page_ends_ = last_ = own(rows);
      return;
    }
    const int64_t page_end = attention::kPageTokens - begin % attention::kPageTokens - 1;
    page_ends_ = own(rows.slice(0, std::min(page_end, T), T, attention::kPageTokens));
    num_before_ = std::max<int64_t>(T - num_last, 0);
    last_ = own(rows.narrow(0, num_before_, T - num_before_));
  }
  // The row (1, C) behind which the text has this length.
  at::Tensor at(int64_t length) const {
    if (!last_.defined()) return {};
    if (length % attention::kPageTokens == 0) {
      return row(page_ends_, length / attention::kPageTokens - begin_ / attention::kPageTokens - 1);
    }
    return row(last_, length - begin_ - 1 - num_before_);
  }

 private:
  static at::Tensor own(const at::Tensor& rows) {
    return rows.storage().nbytes() == rows.nbytes() ? rows : rows.clone();
  }
  static at::Tensor row(const at::Tensor& rows, int64_t index) {
    return rows.size(0) == 1 ? rows : rows.narrow(0, index, 1);
  }

  int64_t begin_, num_before_ = 0;
  at::Tensor page_ends_, last_;
};

}  // namespace

std::shared_ptr<attention::PagePool> make_page_pool(const Decoder& decoder, int64_t max_pages) {
  const DecoderConfig& config = decoder.config();
  return std::make_shared<attention::PagePool>(
      attention::PageLayout{.head_dim = config.head_dim(),
                            .group = config.attention.num_heads / config.num_kv_heads(),
                            .dtype = decoder.compute_dtype(),
                            .max_pages = max_pages,
                            .device = decoder.device(),
                            .int8 = decoder.int8_cache()});
}

SequenceState::SequenceState(const Decoder& decoder, std::shared_ptr<attention::PagePool> pool) {
  const DecoderConfig& config = decoder.config();
  const attention::PageLayout& layout = pool->layout();
  tensor::check_value(layout.head_dim == config.head_dim() &&
                          layout.group == config.attention.num_heads / config.num_kv_heads() &&
                          layout.dtype == decoder.compute_dtype() &&
                          layout.int8 == decoder.int8_cache() && layout.device == decoder.device(),
                      "SequenceState",
                      "pool",
                      fmt::format("pages of D = {}, {}{}",
                                  layout.head_dim,
                                  toString(layout.dtype),
                                  layout.int8 ? " as int8" : ""),
                      "the pool that make_page_pool makes for this decoder");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers_.push_back({.cache = attention::LayerCache(pool, config.num_kv_heads()), .carries = {}});
  }
}

SequenceState SequenceState::fork() const {
  SequenceState copy;
  for (const Layer& layer : layers_) {
    copy.layers_.push_back({layer.cache.fork(), layer.carries, layer.memory, layer.begin});
  }
  return copy;
}

bool SequenceState::can_truncate(int64_t length) const {
  if (length < 0 || length > this->length()) return false;
  if (length == this->length()) return true;
  return std::ranges::all_of(layers_, [&](const Layer& layer) {
    const int64_t n = num_carries(layer.carries, length);
    const bool has_carry =
        length == 0 || layer.carries.empty() || (n > 0 && layer.carries[n - 1].length == length);
    return has_carry && length >= layer.begin + layer.cache.horizon();
  });
}

void SequenceState::truncate(int64_t length) {
  tensor::check_value(can_truncate(length),
                      "truncate",
                      "length",
                      length,
                      fmt::format("one of the last {} lengths up to {}, or a multiple of {}; "
                                  "from the last eviction or local context on",
                                  kCarryTokens,
                                  this->length(),
                                  attention::kPageTokens));
  for (Layer& layer : layers_) {
    layer.cache.truncate(length - layer.begin);
    layer.carries.resize(num_carries(layer.carries, length));
  }
}

CacheUse SequenceState::cache_use() const {
  const attention::PageLayout& layout = layers_[0].cache.pool()->layout();
  const int64_t row_bytes = attention::row_bytes(layout);
  const auto sum_bytes = static_cast<int64_t>(sizeof(double));
  CacheUse use{.pages_kept = {},
               .pages_seen = (length() + attention::kPageTokens - 1) / attention::kPageTokens,
               .page_bytes = attention::kPageTokens * (2 * row_bytes + layout.group * sum_bytes),
               .log_evicted_share = -std::numeric_limits<double>::infinity()};
  for (const Layer& layer : layers_) {
    std::vector<int64_t>& kept = use.pages_kept.emplace_back();
    for (int64_t g = 0; g < layer.cache.num_kv_heads(); ++g) {
      kept.push_back(
          std::ranges::count_if(layer.cache.pages(g), [](int32_t id) { return id >= 0; }));
    }
    use.log_evicted_share = std::max(use.log_evicted_share, layer.cache.evicted_share());
  }
  return use;
}

int64_t CacheUse::bytes_kept() const {
  int64_t pages = 0;
  for (const auto& heads : pages_kept) pages = std::accumulate(heads.begin(), heads.end(), pages);
  return pages * page_bytes;
}

int64_t CacheUse::bytes_saved() const {
  const auto heads = static_cast<int64_t>(pages_kept.size() * pages_kept.at(0).size());
  return heads * pages_seen * page_bytes - bytes_kept();
}

StateSnapshot SequenceState::snapshot() const {
  StateSnapshot snapshot;
  for (const Layer& layer : layers_) {
    snapshot.layers.push_back({layer.cache.snapshot(), layer.carries, layer.memory, layer.begin});
    for (KeptCarry& carry : snapshot.layers.back().carries) carry.own_row();
  }
  return snapshot;
}

SequenceState SequenceState::restore(std::shared_ptr<attention::PagePool> pool,
                                     const StateSnapshot& snapshot) {
  SequenceState state;
  for (const StateSnapshot::Layer& layer : snapshot.layers) {
    state.layers_.push_back({attention::LayerCache::restore(pool, layer.cache),
                             layer.carries,
                             layer.memory,
                             layer.begin});
  }
  return state;
}

at::Tensor SequenceState::gate_sums(int64_t layer) const {
  const attention::LayerCache& cache = layers_[layer].cache;
  std::vector<at::Tensor> groups;
  for (int64_t g = 0; g < cache.num_kv_heads(); ++g) groups.push_back(cache.gather_sums(g, 1));
  return at::cat(groups);
}

void SequenceState::keep_page_ends() {
  TORCH_INTERNAL_ASSERT(length() % attention::kPageTokens == 0);
  for (Layer& layer : layers_) {
    std::erase_if(layer.carries, [](const KeptCarry& carry) {
      return carry.length % attention::kPageTokens != 0;
    });
    for (KeptCarry& carry : layer.carries) carry.own_row();
  }
}

void SequenceState::leave_window(int64_t layer) {
  Layer& own = layers_[layer];
  own.begin += own.cache.length();
  own.cache = attention::LayerCache(own.cache.pool(), own.cache.num_kv_heads());
}

void SequenceState::check_memories() const {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::string& failure = layers_[layer].memory.failure();
    if (failure.empty()) continue;
    throw Error(fmt::format(
        "layer {}: {}; its weights or those of what comes before it hold NaN or numbers that are "
        "too large",
        layer + 1,
        failure));
  }
}

void SequenceState::expect(int64_t tokens) {
  for (Layer& layer : layers_) layer.memory.expect(tokens);
}

void SequenceState::pass(int64_t tokens) {
  for (Layer& layer : layers_) layer.begin += tokens;
}

Carry KeptCarry::carry() const {
  const auto own = [&](const at::Tensor& t) {
    return t.defined() && t.size(0) > 1 ? t.narrow(0, row, 1) : t;
  };
  return {.k = own(rows.k), .v = own(rows.v)};
}

void KeptCarry::own_row() {
  const auto own = [&](at::Tensor& t) {
    if (t.defined() && t.size(0) > 1) t = t.narrow(0, row, 1).clone();
  };
  own(rows.k), own(rows.v);
  row = 0;
}

Carry SequenceState::carry(int64_t layer) const {
  const Carries& carries = layers_[layer].carries;
  return carries.empty() ? Carry{} : carries.back().carry();
}

// Those that a text of length `end` can go back to.
bool SequenceState::keeps_carry(int64_t length, int64_t end) {
  return length > end - kCarryTokens || length % attention::kPageTokens == 0;
}

int64_t SequenceState::drop_carries(int64_t layer) {
  Carries& carries = layers_[layer].carries;
  const int64_t end = layers_[layer].begin + layers_[layer].cache.length();
  // Once in so many tokens: finding them, and moving those behind them, costs more than keeping
  // them. What lies further back was looked at before: a long text has thousands of page ends.
  if (carries.empty() || carries.back().length / kCarryTokens == end / kCarryTokens) return end;
  const int64_t seen = carries.back().length - 2 * kCarryTokens;
  const auto first = carries.begin() + num_carries(carries, seen);
  const auto last = carries.begin() + num_carries(carries, end - kCarryTokens);
  const auto dropped = std::remove_if(
      first, last, [&](const KeptCarry& carry) { return !keeps_carry(carry.length, end); });
  std::for_each(first, dropped, [](KeptCarry& carry) { carry.own_row(); });
  carries.erase(dropped, last);
  return end;
}

void SequenceState::remember(int64_t layer, const Carry& raw) {
  const at::Tensor& any = raw.k.defined() ? raw.k : raw.v;
  if (!any.defined()) return;
  const int64_t end = drop_carries(layer), begin = end - any.size(0);
  const KeptRows k(raw.k, begin, kCarryTokens), v(raw.v, begin, kCarryTokens);
  for (int64_t length = begin + 1; length <= end; ++length) {
    if (!keeps_carry(length, end)) continue;
    layers_[layer].carries.push_back(
        {.length = length, .rows = {.k = k.at(length), .v = v.at(length)}});
  }
}

void SequenceState::remember_row(int64_t layer, const Carry& rows, int64_t row) {
  if (!rows.k.defined() && !rows.v.defined()) return;
  layers_[layer].carries.push_back({.length = drop_carries(layer), .rows = rows, .row = row});
}

}  // namespace reynard::models
