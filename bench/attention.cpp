#include "bench/attention.h"

#include "reynard/attention/attention.h"
#include "reynard/attention/pruning.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdlib>

namespace reynard::bench {

namespace {

// Leaves that gradients are taken of, and the gradient of out.
struct Inputs {
  at::Tensor q, k, v;   // (B, T, H or G, D)
  at::Tensor log_gate;  // (B, T, H) f32
  at::Tensor dout;      // (B, T, H, D)
};

// Three heads of four are local (gate logits N(2, 1): half of the past is forgotten in five
// tokens), one is global (N(12, 1): after 100,000).
at::Tensor mixed_gates(int64_t B, int64_t T, int64_t H) {
  at::Tensor logits = at::randn({B, T, H});
  for (int64_t h = 0; h < H; ++h) logits.select(2, h).add_(h % 4 == 3 ? 12 : 2);
  return at::log_sigmoid(logits);
}

Inputs random_inputs(const AttentionShape& shape, at::ScalarType dtype) {
  Inputs inputs;
  const auto draw = [&](int64_t heads) {
    return at::randn({shape.B, shape.T, heads, shape.D}).to(dtype);
  };
  inputs.q = draw(shape.H), inputs.dout = draw(shape.H);
  inputs.k = draw(shape.G), inputs.v = draw(shape.G);
  inputs.log_gate = mixed_gates(shape.B, shape.T, shape.H);
  for (at::Tensor* x : {&inputs.q, &inputs.k, &inputs.v, &inputs.log_gate}) {
    x->set_requires_grad(true);
  }
  return inputs;
}

constexpr double kLogTolerance = -10;

attention::AttentionOptions pruned_options(bool pruned) {
  attention::AttentionOptions options;
  options.log_pruning_tolerance = pruned ? kLogTolerance : 0;
  return options;
}

at::Tensor ours(const Inputs& x, const at::Tensor& log_gate, bool pruned = false) {
  return attention::attention(x.q, x.k, x.v, log_gate, {}, {}, pruned_options(pruned)).out;
}

// SDPA's layout is (B, H, T, D); contiguous is its fastest.
struct Peer {
  at::Tensor q, k, v, dout;
  Peer(const Inputs& x, at::ScalarType dtype) {
    const auto leaf = [&](const at::Tensor& t) {
      return t.detach().transpose(1, 2).contiguous().to(dtype).set_requires_grad(true);
    };
    q = leaf(x.q), k = leaf(x.k), v = leaf(x.v);
    dout = x.dout.transpose(1, 2).contiguous().to(dtype);
  }
  at::Tensor forward() const {
    return at::scaled_dot_product_attention(
        q, k, v, {}, 0, /*is_causal=*/true, std::nullopt, q.size(1) != k.size(1));
  }
};

double largest(const at::Tensor& x) {
  return at::abs(x).max().item<double>();
}

void check_parity(const std::string& what, double error, double allowed, const char* of) {
  if (error <= allowed) return;
  throw Error(fmt::format(
      "bench: {} differs by {:.2g} of its largest value from {}; expected at most {:.2g}",
      what,
      error,
      of,
      allowed));
}

std::vector<at::Tensor> gradients(const at::Tensor& out,
                                  const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& dout) {
  return torch::autograd::grad({out}, inputs, {dout}, /*retain_graph=*/true);
}

// out, dq, dk, dv in f64, (B, H, T, D)
std::vector<at::Tensor> peer_results(const Peer& peer) {
  const at::Tensor out = peer.forward();
  std::vector<at::Tensor> results = gradients(out, {peer.q, peer.k, peer.v}, peer.dout);
  results.insert(results.begin(), out.detach());
  for (at::Tensor& x : results) x = x.to(at::kDouble);
  return results;
}

// f32: ours and the peer agree to rounding. bf16: against the peer in f32 on the same inputs, ours
// is at most as far off as twice the peer in bf16, whose own gradients err by percents.
void check_dense_parity(const Inputs& x, const Peer& peer) {
  const char* const names[] = {"out", "dq", "dk", "dv"};
  const at::Tensor out = ours(x, {});
  std::vector<at::Tensor> results = gradients(out, {x.q, x.k, x.v}, x.dout);
  results.insert(results.begin(), out.detach());
  const bool is_f32 = out.scalar_type() == at::kFloat;
  const auto theirs = peer_results(peer);
  const auto exact = is_f32 ? theirs : peer_results(Peer(x, at::kFloat));
  for (size_t i = 0; i < results.size(); ++i) {
    const double scale = largest(exact[i]);
    const double error = largest(results[i].transpose(1, 2).to(at::kDouble) - exact[i]) / scale;
    const double allowed = is_f32 ? 1e-4 : 2 * largest(theirs[i] - exact[i]) / scale;
    check_parity(names[i], error, allowed, is_f32 ? "torch's" : "torch's in f32");
  }
}

// With gates, dense and pruned, against f64: the last rows of out, lse and every gradient, which
// none but these rows have to do with (of k, v and gates) or which they have by themselves.
void check_gated_parity(const Inputs& x, bool pruned) {
  const int64_t T = x.q.size(1), rows = std::min<int64_t>(64, T);
  const auto last = [&](const at::Tensor& t, int64_t dim = 1) {
    return t.narrow(dim, T - rows, rows).to(at::kDouble);
  };
  const auto leaf = [](const at::Tensor& t) {
    return t.detach().to(at::kDouble).set_requires_grad(true);
  };
  const at::Tensor q = leaf(last(x.q)), k = leaf(x.k), v = leaf(x.v);
  const at::Tensor log_gate = x.log_gate.detach().clone().set_requires_grad(true);
  const auto exact = attention::attention(q, k, v, log_gate);
  const auto found =
      attention::attention(x.q, x.k, x.v, x.log_gate, {}, {}, pruned_options(pruned));
  const auto exact_grads = gradients(exact.out, {q, k, v, log_gate}, last(x.dout));
  const auto grads = gradients(found.out, {x.q, x.k, x.v, x.log_gate}, x.dout);
  const bool is_f32 = x.q.scalar_type() == at::kFloat;
  const double allowed = is_f32 ? 1e-4 : 2e-2;
  const auto check = [&](const char* name, const at::Tensor& ours, const at::Tensor& theirs) {
    check_parity(name, largest(ours - theirs) / largest(theirs), allowed, "f64");
  };
  check("gated out", last(found.out), exact.out);
  check("gated lse", last(found.lse, 2), exact.lse);
  check("gated dq", last(grads[0]), exact_grads[0]);
  check("gated dk", last(grads[1]), last(exact_grads[1]));
  check("gated dv", last(grads[2]), last(exact_grads[2]));
  check("gate's gradient", last(grads[3]), last(exact_grads[3]));
}

std::string shape_text(const AttentionShape& shape) {
  std::string text = fmt::format("B{} H{} T{} D{}", shape.B, shape.H, shape.T, shape.D);
  if (shape.G != shape.H) text += fmt::format(" G{}", shape.G);
  return text;
}

// GFLOP/s of a causal pass: 2 matrix products forward, 5 backward.
Row speed_row(const AttentionShape& shape,
              const std::string& name,
              const std::string& dtype,
              int products,
              const Medians& seconds,
              const std::string& peer) {
  const double pairs = static_cast<double>(shape.T) * (shape.T + 1) / 2;
  const double flops = 2.0 * products * shape.B * shape.H * shape.D * pairs;
  return with_rates({.name = name,
                     .shape = shape_text(shape),
                     .dtype = dtype,
                     .device = device_name(at::kCPU),
                     .peer = peer,
                     .unit = "GFLOP/s"},
                    flops * 1e-9,
                    seconds);
}

constexpr int kForwardProducts = 2, kBackwardProducts = 5;

// Torch's attention in this process; $ONEDNN_MAX_CPU_ISA holds it back to an older instruction set.
std::string torch_name() {
  const char* const isa = std::getenv("ONEDNN_MAX_CPU_ISA");
  return isa == nullptr ? "torch_sdpa" : fmt::format("torch_sdpa ({})", isa);
}

// Ours computes the gates and their gradients; the peer has none.
Rows dense_rows(const AttentionBench& o, const AttentionShape& shape, const std::string& dtype) {
  Rows rows;
  const Inputs x = random_inputs(shape, scalar_type(dtype));
  const Peer peer(x, x.q.scalar_type());
  check_dense_parity(x, peer);
  check_gated_parity(x, /*pruned=*/false);
  if (is_named(o.names, "dense_forward")) {
    const at::NoGradGuard no_grad;
    const Medians seconds = time_by_turns(
        o.repeats, [&] { ours(x, x.log_gate); }, [&] { peer.forward(); });
    rows.push_back(
        speed_row(shape, "dense_forward", dtype, kForwardProducts, seconds, torch_name()));
  }
  if (is_named(o.names, "dense_backward")) {
    const at::Tensor out = ours(x, x.log_gate), peer_out = peer.forward();
    const Medians seconds = time_by_turns(
        o.repeats,
        [&] {
          gradients(out, {x.q, x.k, x.v, x.log_gate}, x.dout);
        },
        [&] {
          gradients(peer_out, {peer.q, peer.k, peer.v}, peer.dout);
        });
    rows.push_back(
        speed_row(shape, "dense_backward", dtype, kBackwardProducts, seconds, torch_name()));
  }
  return rows;
}

// Speeds of the pruned pass are in FLOPs of the dense one, so that both columns compare.
Rows pruned_rows(const AttentionBench& o, const std::string& dtype) {
  Rows rows;
  const AttentionShape& shape = o.pruned_shape;
  const Inputs x = random_inputs(shape, scalar_type(dtype));
  check_gated_parity(x, /*pruned=*/true);
  const at::Tensor pruned = ours(x, x.log_gate, true), dense = ours(x, x.log_gate);
  const double scale = largest(dense), allowed = dtype == "f32" ? 1e-4 : 2e-2;
  check_parity("out", largest(pruned - dense) / scale, allowed, "own without pruning");
  const int repeats = std::max(3, o.repeats / 2);
  if (is_named(o.names, "pruned_forward")) {
    const at::NoGradGuard no_grad;
    const Medians seconds = time_by_turns(
        repeats, [&] { ours(x, x.log_gate, true); }, [&] { ours(x, x.log_gate); });
    rows.push_back(
        speed_row(shape, "pruned_forward", dtype, kForwardProducts, seconds, "own_dense"));
  }
  if (is_named(o.names, "pruned_backward")) {
    const std::vector<at::Tensor> leaves = {x.q, x.k, x.v, x.log_gate};
    const Medians seconds = time_by_turns(
        repeats,
        [&] { gradients(pruned, leaves, x.dout); },
        [&] { gradients(dense, leaves, x.dout); });
    rows.push_back(
        speed_row(shape, "pruned_backward", dtype, kBackwardProducts, seconds, "own_dense"));
  }
  return rows;
}

// Mid-range heads: most gates near 0.99, so that neither rule keeps everything.
Row kept_tiles_row(const AttentionBench& o, const std::string& dtype) {
  const at::NoGradGuard no_grad;
  const AttentionShape& shape = o.pruned_shape;
  Inputs x = random_inputs(shape, scalar_type(dtype));
  x.log_gate = at::log_sigmoid(at::randn({shape.B, shape.T, shape.H}) + 5);
  const at::Tensor dense = ours(x, x.log_gate);
  const auto kept_by = [&](attention::PruningRule rule) {
    const auto pruned =
        attention::attention(x.q, x.k, x.v, x.log_gate, {}, {}, {0, kLogTolerance, rule});
    const double allowed = dtype == "f32" ? 1e-4 : 2e-2;
    check_parity("out", largest(pruned.out - dense) / largest(dense), allowed, "own dense");
    const auto statistics = attention::attention_statistics(pruned.start, {}, shape.T, shape.T);
    return 1 - statistics.pruned_tiles.mean().item<double>();
  };
  const double tight = kept_by(attention::PruningRule::kTight);
  const double published = kept_by(attention::PruningRule::kPublished);
  return {.name = "kept_tiles",
          .shape = shape_text(shape),
          .dtype = dtype,
          .device = device_name(at::kCPU),
          .ours = tight,
          .peer = "published",
          .peer_value = published,
          .unit = "share",
          .ratio = published / tight};
}

}  // namespace

Rows bench_attention(const AttentionBench& options) {
  const auto check_length = [](const AttentionShape& shape) {
    tensor::check_value(shape.T >= 2,
                        "bench attention",
                        "T of --shape",
                        shape.T,
                        "at least 2: what attends to one key alone has no gradients to compare");
  };
  std::ranges::for_each(options.dense_shapes, check_length);
  check_length(options.pruned_shape);
  Rows rows;
  for (const std::string& dtype : options.dtypes) {
    if (is_named(options.names, "dense_forward") || is_named(options.names, "dense_backward")) {
      for (const AttentionShape& shape : options.dense_shapes) {
        rows += dense_rows(options, shape, dtype);
      }
    }
    if (is_named(options.names, "pruned_forward") || is_named(options.names, "pruned_backward")) {
      rows += pruned_rows(options, dtype);
    }
    if (is_named(options.names, "kept_tiles")) rows.push_back(kept_tiles_row(options, dtype));
  }
  return rows;
}

}  // namespace reynard::bench
