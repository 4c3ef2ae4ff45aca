#include "bench/decode.h"

#include "bench/sum_of_words.h"
#include "reynard/attention/attention.h"
#include "reynard/attention/decode.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <span>

namespace reynard::bench {

namespace {

// A cache whose pages lie in random order: of a pool that is in use, only as many pages as are
// taken next become free, wherever they lie.
attention::LayerCache shuffled_cache(const attention::PageLayout& layout,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const at::Tensor& log_gate) {
  const int64_t T = k.size(0), G = k.size(1);
  const auto pool = std::make_shared<attention::PagePool>(layout);
  std::vector<int32_t> pages;
  for (int64_t t = 0; t < T; t += attention::kPageTokens) {
    for (int64_t g = 0; g < G; ++g) pages.push_back(pool->allocate());
  }
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  attention::LayerCache cache(pool, G);
  for (int64_t t = 0; t < T; t += attention::kPageTokens) {
    for (int64_t g = 0; g < G; ++g) {
      pool->release(pages.back());
      pages.pop_back();
    }
    const int64_t n = std::min(attention::kPageTokens, T - t);
    cache.append(k.narrow(0, t, n), v.narrow(0, t, n), log_gate.narrow(0, t, n));
  }
  return cache;
}

// Pages of f32, bf16, or int8 that is multiplied by scales in f32.
attention::PageLayout layout_of(const DecodeBench& o, const std::string& dtype) {
  const bool int8 = dtype == "int8";
  return {.head_dim = o.D,
          .group = o.H / o.G,
          .dtype = int8 ? at::kFloat : scalar_type(dtype),
          .int8 = int8};
}

// A cached sequence, the same tensors contiguous, and queries of its last tokens.
struct Sequence {
  attention::PageLayout layout;
  at::Tensor q;         // (chunk, H, D)
  at::Tensor k, v;      // (T, G, D) what the cache holds
  at::Tensor log_gate;  // (T, H) f32
  attention::LayerCache cache;

  Sequence(const DecodeBench& o, int64_t T, int64_t chunk, const std::string& dtype)
      : layout(layout_of(o, dtype)),
        q(at::randn({chunk, o.H, o.D}).to(layout.dtype)),
        k(at::randn({T, o.G, o.D}).to(layout.dtype)),
        v(at::randn({T, o.G, o.D}).to(layout.dtype)),
        log_gate(at::log_sigmoid(at::randn({T, o.H}) + 12)),
        cache(shuffled_cache(layout, k, v, log_gate)) {
    if (!layout.int8) return;
    const attention::LayerCache::Gathered rounded = cache.gather(0, o.G);
    k = rounded.k.contiguous();
    v = rounded.v.contiguous();
  }

  // Of keys, values, their scales and the sums of gates.
  int64_t bytes() const {
    const int64_t rows = k.size(0) * k.size(1), element = layout.int8 ? 1 : k.element_size();
    const int64_t scale = layout.int8 ? sizeof(float) : 0;
    return 2 * rows * (layout.head_dim * element + scale) +
           log_gate.numel() * static_cast<int64_t>(sizeof(double));
  }

  at::Tensor from_pages() const {
    const attention::LayerCache* caches[] = {&cache};
    const int64_t offsets[] = {0, q.size(0)};
    return attention::paged_attention(q, offsets, caches).out;
  }
  at::Tensor contiguous() const {
    return attention::attention(
               q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), log_gate.unsqueeze(0), {}, {}, {})
        .out[0];
  }
};

void check_parity(const Sequence& sequence, const std::string& name, const std::string& dtype) {
  const at::Tensor expected = sequence.contiguous().to(at::kDouble);
  const double scale = at::abs(expected).max().item<double>();
  const at::Tensor difference = sequence.from_pages().to(at::kDouble) - expected;
  const double error = at::abs(difference).max().item<double>() / scale;
  // bf16: weights are rounded before they multiply the values, and both outputs are.
  const double allowed = dtype == "bf16" ? 2e-2 : 1e-5;
  if (error <= allowed) return;
  throw Error(fmt::format(
      "bench: {} differs by {:.2g} of its largest value from attention on contiguous tensors; "
      "expected at most {:.2g}",
      name,
      error,
      allowed));
}

std::string shape_text(const DecodeBench& o, int64_t T) {
  std::string text = fmt::format("H{} T{} D{}", o.H, T, o.D);
  if (o.G != o.H) text += fmt::format(" G{}", o.G);
  return text;
}

// Against a copy of the same bytes, both ways counted, and against reading them once.
Rows decode_rows(const DecodeBench& o, const std::string& dtype) {
  const Sequence sequence(o, o.length, 1, dtype);
  check_parity(sequence, "decode", dtype);
  const at::Tensor source =
      sequence.k.new_empty({sequence.bytes() / sequence.k.element_size()}).fill_(1);
  at::Tensor target = at::empty_like(source);
  const Medians seconds = time_by_turns(
      o.repeats, [&] { sequence.from_pages(); }, [&] { target.copy_(source); });
  const double gigabytes = static_cast<double>(source.nbytes()) * 1e-9;
  const Row row{.name = "decode",
                .shape = shape_text(o, o.length),
                .dtype = dtype,
                .device = device_name(at::kCPU),
                .peer = "copy",
                .unit = "GB/s"};
  Row copy = with_rates(row, gigabytes, seconds);
  copy.peer_value *= 2, copy.peer_best *= 2, copy.ratio /= 2;
  std::atomic<uint64_t> sink{0};
  const Medians reading = time_by_turns(
      o.repeats, [&] { sequence.from_pages(); }, [&] { sink += sum_of_words(source); });
  Row sum = with_rates(row, gigabytes, reading);
  sum.peer = "sum";
  return {copy, sum};
}

Row prefill_row(const DecodeBench& o, const std::string& dtype) {
  const int64_t T = o.prefill_length, chunk = std::min(o.chunk, T);
  const Sequence sequence(o, T, chunk, dtype);
  check_parity(sequence, "prefill", dtype);
  const Medians seconds = time_by_turns(
      o.repeats, [&] { sequence.from_pages(); }, [&] { sequence.contiguous(); });
  const double pairs = static_cast<double>(chunk) * static_cast<double>(2 * T - chunk + 1) / 2;
  const double flops = 4.0 * o.H * o.D * pairs;
  return with_rates({.name = "prefill",
                     .shape = shape_text(o, T) + fmt::format(" +{}", chunk),
                     .dtype = dtype,
                     .device = device_name(at::kCPU),
                     .peer = "own_dense",
                     .unit = "GFLOP/s"},
                    flops * 1e-9,
                    seconds);
}

}  // namespace

Rows bench_decode(const DecodeBench& options) {
  const at::NoGradGuard no_grad;
  Rows rows;
  for (const std::string& dtype : options.dtypes) {
    if (is_named(options.names, "decode")) rows += decode_rows(options, dtype);
    if (is_named(options.names, "prefill")) rows.push_back(prefill_row(options, dtype));
  }
  return rows;
}

}  // namespace reynard::bench
