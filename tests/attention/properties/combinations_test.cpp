// Every option at once, drawn at random: grouped heads, any head dimension, windows, padding and
// documents as first_key, shut gates, several parts causal or not and with or without bias, fewer
// queries than keys, pruning with either rule and with or without a bound of the logits. Forward
// and backward against the f64 definition.

#include "reynard/attention/attention.h"
#include "reynard/attention/bias.h"
#include "reynard/attention/parts.h"
#include "reynard/attention/reference.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <ATen/ops/exp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace reynard::attention {
namespace {

using test::random_inputs;

// One call of the operator: the keys of all parts lie one after the other in k, v and log_gate, the
// query's own sequence last.
struct Call {
  at::Tensor q, k, v, log_gate, dout, dlse;
  std::vector<int64_t> borders;        // of the parts: 0, ..., number of keys
  std::vector<bool> causal, biased;    // per part
  std::vector<at::Tensor> first_keys;  // per part, undefined: 0
  at::Tensor logit_bound;              // (H) or (B, H), or undefined
  AttentionOptions options;

  int64_t Tq() const { return q.size(1); }
  size_t num_parts() const { return causal.size(); }
};

int64_t number(int64_t low, int64_t high) {
  return *rc::gen::inRange<int64_t>(low, high + 1);
}

bool coin() {
  return *rc::gen::arbitrary<bool>();
}

// Non-decreasing, sometimes beyond what a query sees.
at::Tensor random_first_key(int64_t B, int64_t Tq, int64_t Tk) {
  at::Tensor first = at::zeros({B, Tq}, at::kInt);
  for (int64_t b = 0; b < B; ++b) {
    int64_t key = number(0, Tk);
    const int64_t step = number(0, 3);
    for (int64_t i = 0; i < Tq; ++i) {
      if (number(0, 20) == 0) key += number(0, 40);
      key = std::min(Tk, key + (step == 0 ? 0 : number(0, step)));
      first[b][i] = static_cast<int32_t>(key);
    }
  }
  return test::on_test_device(first);
}

// Of the call, so far as no option says otherwise.
double scale_of(const Call& call) {
  return call.options.scale != 0 ? call.options.scale
                                 : 1 / std::sqrt(static_cast<double>(call.q.size(3)));
}

// A bound that holds: scale |q| |k| of the longest rows of each head, times 1 or a little more.
at::Tensor random_bound(const Call& call) {
  const auto longest = [](const at::Tensor& rows) {  // (B, heads)
    return rows.to(at::kDouble).square().sum(-1).sqrt().amax(1);
  };
  const int64_t group = call.q.size(2) / call.k.size(2);
  const at::Tensor keys = longest(call.k).repeat_interleave(group, 1);
  const double enlarged = scale_of(call) * (1 + 1e-5) * *rc::gen::element(1.0, 1.0, 2.0);
  const at::Tensor bound = (longest(call.q) * keys * enlarged).to(at::kFloat);
  return coin() ? bound : bound.amax(0);
}

// One to three gates, the same of all heads.
void shut_gates(at::Tensor& log_gate) {
  for (int64_t n = number(1, 3); n > 0; --n) {
    const int64_t position = number(0, log_gate.size(1) - 1);
    log_gate.select(1, position).fill_(*rc::gen::element(-30.0, -600.0, -1000.0));
  }
}

Call random_call() {
  Call call;
  const bool few = coin();
  const int64_t Tq = number(1, few ? 20 : 270);
  const int64_t B = number(1, few ? 4 : 2), G = number(1, 2);
  const int64_t H = G * (few ? *rc::gen::element<int64_t>(1, 2, 3, 5, 8)
                             : *rc::gen::element<int64_t>(1, 2, 3, 8 / G));
  const int64_t D =
      coin() ? number(1, 256) : *rc::gen::element(8, 16, 17, 48, 64, 80, 96, 128, 256);
  const int64_t num_parts = number(1, 3);
  call.borders = {0};
  for (int64_t p = 0; p < num_parts; ++p) {
    const bool own = p + 1 == num_parts;
    const int64_t Tk = own ? Tq + (coin() ? 0 : number(0, 200)) : number(0, 200);
    call.borders.push_back(call.borders.back() + Tk);
    call.causal.push_back(own && number(0, 4) != 0);
    call.biased.push_back(number(0, 4) != 0);
    call.first_keys.push_back(coin() ? random_first_key(B, Tq, Tk) : at::Tensor());
  }
  const auto dtype = *rc::gen::element(at::kFloat, at::kFloat, at::kBFloat16, at::kHalf);
  const auto gate_mean = static_cast<double>(number(-1, 4));
  const auto in =
      random_inputs({.B = B, .Tq = Tq, .Tk = call.borders.back(), .H = H, .G = G, .D = D},
                    dtype,
                    static_cast<uint64_t>(number(0, 1 << 30)),
                    gate_mean);
  call.q = in.q, call.k = in.k, call.v = in.v, call.log_gate = in.log_gate;
  call.dout = in.dout, call.dlse = in.dlse;
  if (number(0, 2) == 0) shut_gates(call.log_gate);
  if (coin()) call.options.scale = number(1, 20) / 10.0 / std::sqrt(static_cast<double>(D));
  call.options.log_pruning_tolerance = *rc::gen::element(0.0, -1.0, -10.0);
  call.options.rule = *rc::gen::element(PruningRule::kTight, PruningRule::kPublished);
  if (coin()) call.logit_bound = random_bound(call);
  return call;
}

// Leaves of one dtype and what was made of them.
struct Graph {
  at::Tensor q, k, v, log_gate, query_sums;
  std::vector<KeyPart> parts;
};

Graph graph_of(const Call& call, bool exact) {
  const auto leaf = [&](const at::Tensor& t) {
    return (exact ? t.to(at::kDouble) : t.clone()).detach().requires_grad_(true);
  };
  Graph graph{leaf(call.q), leaf(call.k), leaf(call.v), leaf(call.log_gate), {}, {}};
  const at::Tensor sums = gate_sums(graph.log_gate);
  graph.query_sums = sums.slice(2, call.borders.back() - call.Tq());
  for (size_t p = 0; p < call.num_parts(); ++p) {
    const int64_t begin = call.borders[p], end = call.borders[p + 1];
    graph.parts.push_back({graph.k.slice(1, begin, end),
                           graph.v.slice(1, begin, end),
                           call.biased[p] ? sums.slice(2, begin, end) : at::Tensor(),
                           call.first_keys[p],
                           call.causal[p]});
  }
  return graph;
}

std::vector<at::Tensor> gradients(const Call& call,
                                  const Graph& graph,
                                  const at::Tensor& out,
                                  const at::Tensor& lse) {
  const at::Tensor dlse = call.dlse.to(lse.scalar_type()).masked_fill(lse.detach().isinf(), 0);
  torch::autograd::backward({out, lse}, {call.dout.to(out.scalar_type()), dlse});
  std::vector<at::Tensor> all = {out.detach(), lse.detach()};
  for (const at::Tensor* t : {&graph.q, &graph.k, &graph.v, &graph.log_gate}) {
    all.push_back(t->grad().defined() ? t->grad() : at::zeros_like(*t));
  }
  return all;
}

// Rounding of a result of the kernel, relative to its largest element: P, dS and the result itself
// are rounded to the dtype, and sums of hundreds of rounded terms go into one gradient. Biases of
// hundreds are rounded to f32 as well, as in the naive formula, whose error may then be larger.
double rounding(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 3e-2;
  return dtype == at::kHalf ? 4e-3 : 2e-5;
}

double largest_of(const at::Tensor& t) {
  return t.numel() ? t.masked_fill(t.isinf(), 0).abs().max().item<double>() : 0;
}

// The difference with equal infinities counted as 0.
at::Tensor difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b).masked_fill(a.isinf().logical_and(b.isinf()), 0);
}

// What the rounding of a result scales with: its largest element, and for what comes from dS also
// the row products |dout| |out|, since delta = dout . out of the rounded out enters every element
// of a row.
double magnitude(const Call& call, const std::vector<at::Tensor>& exact, size_t result) {
  constexpr size_t kOut = 0, kDq = 2, kDk = 3, kDlogGate = 5;
  const double delta = largest_of((call.dout.to(at::kDouble) * exact[kOut]).abs().sum(-1));
  const double from_delta = result == kDq         ? delta * scale_of(call) * largest_of(call.k)
                            : result == kDk       ? delta * scale_of(call) * largest_of(call.q)
                            : result == kDlogGate ? delta
                                                  : 0;
  return std::max(largest_of(exact[result]), from_delta);
}

double noise_of(const Call& call, const std::vector<at::Tensor>& exact, size_t result) {
  constexpr size_t kLse = 1;
  const double of_results = rounding(call.q.scalar_type());
  const double of_logits = test::logit_rounding(call.q, call.k, exact[kLse], scale_of(call));
  const double largest = magnitude(call, exact, result);
  return result == kLse ? std::max(of_results * largest, of_logits)
                        : std::max(of_results, of_logits) * largest;
}

void check_call(const Call& call) {
  at::Tensor starts;  // (P, B, H, blocks): what pruning and first_key leave out
  {
    const at::NoGradGuard no_grad;
    const Graph graph = graph_of(call, false);
    starts =
        forward_parts(graph.q, graph.query_sums, graph.parts, call.logit_bound, call.options).start;
  }
  const Graph ours = graph_of(call, false), exact = graph_of(call, true);
  const AttentionOutput result =
      attention(ours.q, ours.query_sums, ours.parts, call.logit_bound, call.options);
  const std::vector<at::Tensor> kept(starts.unbind(0));
  const double scale = call.options.scale;
  const ReferenceOutput expected =
      reference_attention(exact.q, exact.query_sums, exact.parts, scale, kept);
  const Graph plain = graph_of(call, false);
  const ReferenceOutput naive =
      reference_attention(plain.q, plain.query_sums, plain.parts, scale, kept);
  const auto a = gradients(call, ours, result.out, result.lse);
  const auto e = gradients(call, exact, expected.out, expected.lse);
  const auto n = gradients(call, plain, naive.out, naive.lse);
  const char* const names[] = {"out", "lse", "dq", "dk", "dv", "dlog_gate"};
  for (size_t i = 0; i < a.size(); ++i) {
    const double allowed = std::max(noise_of(call, e, i), 2 * largest_of(difference(n[i], e[i])));
    const auto near = test::near(a[i].to(at::kDouble), e[i], allowed, 0);
    if (!near) RC_FAIL(std::string(names[i]) + ": " + near.message());
  }
  const at::NoGradGuard no_grad;
  const at::Tensor all =
      reference_attention(exact.q, exact.query_sums, exact.parts, call.options.scale).lse;
  const at::Tensor dropped = (1 - at::exp(expected.lse - all)).masked_fill(all.isinf(), 0);
  const double tolerance = call.options.log_pruning_tolerance;
  RC_ASSERT(dropped.max().item<double>() <= (tolerance == 0 ? 1e-12 : std::exp(tolerance)));
}

TEST(Kernels, AnyCombinationOfOptionsIsTheDefinition) {
  EXPECT_TRUE(rc::check("any combination of options", [] {
    const Call call = random_call();
    std::string text = "B " + std::to_string(call.q.size(0)) + " Tq " + std::to_string(call.Tq()) +
                       " H " + std::to_string(call.q.size(2)) + " G " +
                       std::to_string(call.k.size(2)) + " D " + std::to_string(call.q.size(3)) +
                       " " + c10::toString(call.q.scalar_type()) + " tolerance " +
                       std::to_string(call.options.log_pruning_tolerance) +
                       (call.options.rule == PruningRule::kTight ? " tight" : " published") +
                       (call.logit_bound.defined()
                            ? " bound of " + std::to_string(call.logit_bound.dim()) + " dimensions"
                            : "");
    for (size_t p = 0; p < call.num_parts(); ++p) {
      text += " | keys to " + std::to_string(call.borders[p + 1]) +
              (call.causal[p] ? " causal" : "") + (call.biased[p] ? " biased" : "") +
              (call.first_keys[p].defined() ? " first_key" : "");
    }
    RC_LOG() << text;
    check_call(call);
  }));
}

}  // namespace
}  // namespace reynard::attention
