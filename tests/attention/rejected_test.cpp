// Every argument that the operator rejects, and what the message names.

#include "reynard/attention/attention.h"
#include "reynard/attention/bias.h"
#include "reynard/tensor/check.h"
#include "tests/support/attention_inputs.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>

#include <functional>
#include <string>

namespace reynard::attention {
namespace {

using test::AttentionInputs;
using test::random_inputs;

void expect_error(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    FAIL() << "no error; expected one that contains: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

class Rejected : public testing::Test {
 protected:
  AttentionInputs in = random_inputs({.B = 2, .Tq = 5, .Tk = 7, .H = 4, .G = 2, .D = 8});

  void expect(const std::string& text, const AttentionOptions& options = {}) {
    expect_error([&] { attention(in.q, in.k, in.v, in.log_gate, in.first_key, bound, options); },
                 text);
  }
  at::Tensor bound;
};

TEST_F(Rejected, QueryShape) {
  in.q = in.q[0];
  expect("attention: q has shape [5, 4, 8]; expected [B, Tq, H, D]");
}
TEST_F(Rejected, QueryDtype) {
  in.q = in.q.to(at::kInt);
  expect("attention: q has dtype Int; expected one of Float, BFloat16, Half, Double");
}
TEST_F(Rejected, KeyHeadDimension) {
  in.k = in.k.slice(3, 0, 4);
  expect("attention: k has shape [2, 7, 2, 4]; expected [B = 2, Tk, G, D = 8]");
}
TEST_F(Rejected, KeyHeadsThatDoNotDivide) {
  in.k = at::zeros({2, 7, 3, 8}, in.q.options()), in.v = at::zeros({2, 7, 3, 8}, in.q.options());
  expect("number of key/value heads G of k = 3; expected a divisor of the 4 query heads");
}
TEST_F(Rejected, ValueShape) {
  in.v = in.v.slice(1, 0, 6);
  expect("attention: v has shape [2, 6, 2, 8]; expected [B = 2, Tk = 7, G = 2, D = 8]");
}
TEST_F(Rejected, ValueDtype) {
  in.v = in.v.to(at::kBFloat16);
  expect("attention: v has dtype BFloat16; expected Float");
}
TEST_F(Rejected, GateShape) {
  in.log_gate = in.log_gate.slice(1, 0, 5);  // length of the queries, not the keys
  expect("attention: log_gate has shape [2, 5, 4]; expected [B = 2, Tk = 7, H = 4]");
}
TEST_F(Rejected, GateDtype) {
  in.log_gate = in.log_gate.to(at::kBFloat16);
  expect("attention: log_gate has dtype BFloat16");
}
TEST_F(Rejected, FirstKeyShape) {
  in.first_key = at::zeros({2, 7}, at::kInt);
  expect("attention: first_key has shape [2, 7]; expected [B = 2, Tq = 5]");
}
TEST_F(Rejected, FirstKeyDtype) {
  in.first_key = at::zeros({2, 5}, at::kLong);
  expect("attention: first_key has dtype Long; expected Int");
}
// As if they lay on another GPU.
TEST_F(Rejected, TensorsElsewhere) {
  const auto elsewhere = [](const at::Tensor& t) { return t.to(at::kMeta); };
  const AttentionInputs here = in;
  const auto expect_named = [&](const std::string& name) {
    expect("attention: device of " + name +
           " = meta; expected that of q: " + here.q.device().str());
    in = here;
  };
  in.k = elsewhere(in.k);
  expect_named("k");
  in.v = elsewhere(in.v);
  expect_named("v");
  in.log_gate = elsewhere(in.log_gate);
  expect_named("log_gate");
  in.first_key = elsewhere(at::zeros({2, 5}, at::kInt));
  expect_named("first_key");
  bound = elsewhere(at::zeros({4}));
  expect_named("logit_bound");
}
TEST_F(Rejected, MoreQueriesThanKeys) {
  in.q = at::zeros({2, 8, 4, 8}, in.k.options());
  expect("number of queries of q = 8; expected at most the 7 keys of k");
}
TEST_F(Rejected, HeadDimensionTooLarge) {
  in = random_inputs({.B = 1, .Tq = 2, .Tk = 2, .H = 1, .G = 1, .D = 257});
  expect("head dimension D = 257; expected 1 <= D <= 256");
}
TEST_F(Rejected, BoundShape) {
  bound = at::zeros({3});
  expect("attention: logit_bound has shape [3]; expected [H = 4]");
}
TEST_F(Rejected, BoundDtype) {
  bound = at::zeros({4}, at::kDouble);
  expect("attention: logit_bound has dtype Double; expected Float");
}
TEST_F(Rejected, Scale) {
  expect("attention: scale = -1", {.scale = -1});
}
TEST_F(Rejected, Tolerance) {
  expect("attention: log_pruning_tolerance = 2", {.log_pruning_tolerance = 2});
}
TEST_F(Rejected, Parts) {
  const at::Tensor sums = gate_sums(in.log_gate);
  const KeyPart part = {in.k, in.v, sums, {}, true};
  expect_error([&] { attention(in.q, at::Tensor(), {&part, 1}, {}); }, "query_sums = undefined");
  expect_error(
      [&] {
        attention(in.q, sums, {&part, 1}, {});
      },
      "attention: query_sums has shape [2, 4, 7]; expected [B = 2, H = 4, Tq = 5]");
  expect_error([&] { attention(in.q, sums, std::span<const KeyPart>(), {}); },
               "number of key parts = 0");
  const KeyPart narrow = {in.k, in.v, sums.to(at::kFloat), {}, true};
  expect_error(
      [&] {
        attention(in.q, sums.slice(2, 2), {&narrow, 1}, {});
      },
      "attention: sums has dtype Float; expected Double");
}
// Messages say which of several parts is wrong.
TEST_F(Rejected, OneOfSeveralParts) {
  const at::Tensor sums = gate_sums(in.log_gate), query_sums = sums.slice(2, 2);
  const KeyPart good = {in.k, in.v, sums, {}, /*causal=*/true};
  const auto expect_of_second = [&](const std::string& text,
                                    const std::function<void(KeyPart&)>& change) {
    KeyPart parts[] = {good, good};
    change(parts[1]);
    expect_error([&] { attention(in.q, query_sums, parts, {}); }, "attention: " + text);
  };
  expect_of_second("k of part 1 has shape [2, 7, 2, 4]; expected [B = 2, Tk, G, D = 8]",
                   [](KeyPart& p) { p.k = p.k.slice(3, 0, 4); });
  expect_of_second("k of part 1 has dtype Half; expected Float, as q (autocast casts neither)",
                   [](KeyPart& p) { p.k = p.k.to(at::kHalf); });
  expect_of_second("device of k of part 1 = meta", [](KeyPart& p) { p.k = p.k.to(at::kMeta); });
  expect_of_second("number of key/value heads G of k of part 1 = 0",
                   [](KeyPart& p) { p.k = p.k.slice(2, 0, 0), p.v = p.v.slice(2, 0, 0); });
  expect_of_second("v of part 1 has shape [2, 6, 2, 8]; expected [B = 2, Tk = 7, G = 2, D = 8]",
                   [](KeyPart& p) { p.v = p.v.slice(1, 1); });
  expect_of_second("v of part 1 has dtype BFloat16; expected Float",
                   [](KeyPart& p) { p.v = p.v.to(at::kBFloat16); });
  expect_of_second("device of v of part 1 = meta", [](KeyPart& p) { p.v = p.v.to(at::kMeta); });
  expect_of_second("sums of part 1 has shape [2, 4, 6]; expected [B = 2, H = 4, Tk = 7]",
                   [](KeyPart& p) { p.sums = p.sums.slice(2, 1); });
  expect_of_second("sums of part 1 has dtype Float; expected Double",
                   [](KeyPart& p) { p.sums = p.sums.to(at::kFloat); });
  expect_of_second("device of sums of part 1 = meta",
                   [](KeyPart& p) { p.sums = p.sums.to(at::kMeta); });
  expect_of_second("first_key of part 1 has shape [2, 7]; expected [B = 2, Tq = 5]",
                   [](KeyPart& p) {
                     p.first_key = at::zeros({2, 7}, at::kInt);
                   });
  expect_of_second("first_key of part 1 has dtype Long; expected Int", [](KeyPart& p) {
    p.first_key = at::zeros({2, 5}, at::kLong);
  });
  expect_of_second("number of queries of q = 5; expected at most the 4 keys of k of part 1",
                   [](KeyPart& p) {
                     p = {p.k.slice(1, 3), p.v.slice(1, 3), {}, {}, true};
                   });
  const KeyPart parts[] = {good, good};
  expect_error([&] { attention(in.q, query_sums.to(at::kFloat), parts, {}); },
               "attention: query_sums has dtype Float; expected Double");
  expect_error([&] { attention(in.q, query_sums.to(at::kMeta), parts, {}); },
               "attention: device of query_sums = meta");
  expect_error([&] { attention(in.q, {}, parts, {}); },
               "attention: query_sums = undefined; expected a tensor, since k of part 0 has sums");
}
TEST_F(Rejected, RuleName) {
  EXPECT_EQ(pruning_rule_named(config::name_of(PruningRule::kPublished)), PruningRule::kPublished);
  EXPECT_EQ(pruning_rule_named("tight"), PruningRule::kTight);
  expect_error([] { pruning_rule_named("loose"); }, "expected tight or published");
}

}  // namespace
}  // namespace reynard::attention
