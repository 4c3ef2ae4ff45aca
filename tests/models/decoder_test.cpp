// The decoder's arguments, observers, recomputation, scores and states.

#include "reynard/models/decoder.h"

#include "reynard/models/checkpointing.h"
#include "reynard/models/registry.h"
#include "reynard/models/score.h"
#include "reynard/models/state.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace reynard::models {
namespace {

const DecoderConfig& pro_config() {
  return test::attention_variants()[1].config;
}

at::Tensor row_offsets(const std::vector<int64_t>& offsets) {
  return at::tensor(offsets, at::kLong);
}

void expect_error(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    FAIL() << "no error; expected one with \"" << part << "\"";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// The bound of logits that pruning rests on is kept only as long as its weights are the same.
TEST(Decoder, PrunesByTheWeightsThatItHas) {
  const at::NoGradGuard no_grad;
  DecoderConfig config = pro_config();
  config.attention.log_pruning_tolerance = -10;
  const at::Tensor tokens = at::randint(config.vocab_size, {700}, at::kLong);
  const auto read_only = [&] {
    Decoder decoder(config, /*seed=*/1);
    decoder.parameters([](const std::string& /*name*/, Parameter& parameter) {
      parameter.value.requires_grad_(false);
    });
    return decoder;
  };
  const auto sharpen = [](Decoder& decoder) {
    decoder.parameters([](const std::string& name, Parameter& parameter) {
      if (name.ends_with("q_norm.weight")) parameter.value.mul_(20);
    });
  };
  const auto hidden = [&](Decoder& decoder) { return decoder.hidden(tokens, row_offsets({0})); };
  Decoder changed = read_only(), fresh = read_only();
  const at::Tensor before = hidden(changed);
  sharpen(changed);
  sharpen(fresh);
  const at::Tensor expected = hidden(fresh);
  EXPECT_FALSE(expected.equal(before));
  EXPECT_BITWISE_EQUAL(hidden(changed), expected);
}

TEST(Decoder, RejectsWhatItCannotRead) {
  Decoder decoder(pro_config());
  const at::Tensor tokens = at::zeros({6}, at::kLong);
  const auto hidden = [&](const at::Tensor& t, const std::vector<int64_t>& offsets) {
    return [&decoder, t, offsets] { decoder.hidden(t, row_offsets(offsets)); };
  };
  expect_error(hidden(tokens.view({2, 3}), {0}), "tokens has shape [2, 3]");
  expect_error(hidden(tokens.to(at::kInt), {0}), "tokens has dtype Int");
  expect_error(hidden(at::zeros({0}, at::kLong), {0}), "number of tokens = 0");
  expect_error(hidden(tokens, {}), "number of offsets = 0");
  expect_error(hidden(tokens, {1}), "offsets[0] = 1");
  expect_error(hidden(tokens, {0, 3, 3}), "offsets[1] = 3");
  expect_error(hidden(tokens, {0, 6}), "offsets[1] = 6");
  expect_error(hidden(tokens + 48, {0}), "token id = 48; expected 0 to 47");
  expect_error(hidden(tokens - 1, {0}), "token id = -1");

  const auto pool = make_page_pool(decoder);
  SequenceState state(decoder, pool);
  SequenceState* one[] = {&state};
  SequenceState* twice[] = {&state, &state};
  SequenceState* none[] = {nullptr};
  expect_error([&] { decoder.hidden(tokens, row_offsets({0, 2}), one); }, "number of states = 1");
  expect_error([&] { decoder.hidden(tokens, row_offsets({0, 2}), twice); }, "state");
  expect_error([&] { decoder.hidden(tokens, row_offsets({0}), none); }, "state = null");
  DecoderConfig deeper = pro_config();
  deeper.num_layers = 3;
  Decoder other(deeper);
  expect_error([&] { other.hidden(tokens, row_offsets({0}), one); }, "2 layers");
  decoder.set_compute_dtype(at::kBFloat16);
  expect_error([&] { SequenceState(decoder, pool); }, "make_page_pool");
  expect_error([&] { decoder.set_compute_dtype(at::kHalf); }, "Float or BFloat16");
}

TEST(Decoder, RejectsImpossibleConfigs) {
  const auto with = [](const std::function<void(DecoderConfig&)>& change) {
    return [change] {
      DecoderConfig config = test::small_config();
      change(config);
      Decoder decoder(config);
    };
  };
  expect_error(with([](auto& c) { c.attention.num_heads = 0; }), "num_heads");
  expect_error(with([](auto& c) { c.attention.num_heads = 3; }), "must divide hidden_size = 32");
  expect_error(with([](auto& c) { c.attention.num_kv_heads = 3; }), "must divide num_heads = 4");
  expect_error(with([](auto& c) { c.attention.head_dim = 257; }), "head_dim");
  expect_error(with([](auto& c) {
                 c.attention.head_dim = 7;
                 c.attention.rope = true;
               }),
               "must be even");
  expect_error(with([](auto& c) {
                 c.attention.rope = true;
                 c.attention.rope_base = 1;
                 c.attention.rope_scaling = {
                     .type = ops::RotaryScalingType::kYarn, .factor = 2, .original_length = 64};
               }),
               "must be > 1 for yarn");
  expect_error(with([](auto& c) { c.mixer = "mamba7"; }), "\"mamba7\" is not a mixer");
  expect_error(with([](auto& c) { c.hidden_act = "gelu"; }), "hidden_act");
  expect_error(with([](auto& c) { c.attention.forget_gate = ForgetGate::kFixed; }), "decay_time");
  expect_error(with([](auto& c) { c.attention.decay_time_min = 2; }), "decay_time");
  expect_error(with([](auto& c) {
                 c.attention.forget_gate = ForgetGate::kNone;
                 c.attention.forget_bias_init = 1;
               }),
               "forget_bias_init");
  expect_error(with([](auto& c) { c.attention.temperature_init = 2; }), "temperature_init");
  expect_error(with([](auto& c) {
                 c.attention.forget_gate = ForgetGate::kFull;
                 c.attention.forget_bias_init = -1e39;
               }),
               "-1e+39 is beyond the range of f32");
  expect_error(with([](auto& c) {
                 c.attention.forget_gate = ForgetGate::kFixed;
                 c.attention.decay_time_min = 1e-3;
                 c.attention.decay_time_max = 1;
               }),
               "must be at least 1/700");
  expect_error(with([](auto& c) {
                 c.attention.qk_norm = QKNorm::kTemperature;
                 c.attention.temperature_init = 1e39;
               }),
               "1e+39 is beyond the range of f32");
  expect_error(with([](auto& c) {
                 c.attention.output_gate = OutputGate::kSilu;
                 c.attention.output_norm = true;
               }),
               "output_gate");
  expect_error(with([](auto& c) { c.num_layers = 1 << 20; }), "num_layers");
  expect_error(with([](auto& c) { c.eos_token_id = 48; }), "eos_token_id");
  EXPECT_THROW(find_mixer("mamba7"), Error);
}

struct Recorder : Observer {
  std::vector<int64_t> layers;
  AttentionView view;
  bool wants(int64_t layer) override { return layer == 1; }
  void attention(int64_t layer, const AttentionView& seen) override {
    layers.push_back(layer);
    view = seen;
  }
};

TEST(Decoder, ObserverSeesTheLayersThatItWants) {
  Decoder decoder(pro_config());
  Recorder recorder;
  const at::Tensor tokens = at::randint(48, {150}, at::kLong);
  at::Tensor hidden = decoder.hidden(
      tokens, row_offsets({0, 100}), {}, {.checkpoint_activations = true, .observer = &recorder});
  hidden.sum().backward();  // the second run of each block is not shown
  EXPECT_EQ(recorder.layers, std::vector<int64_t>{1});
  EXPECT_EQ(recorder.view.q.sizes(), (std::vector<int64_t>{150, 4, 8}));
  EXPECT_EQ(recorder.view.k.sizes(), (std::vector<int64_t>{150, 4, 8}));
  EXPECT_EQ(recorder.view.log_gate.sizes(), (std::vector<int64_t>{150, 4}));
  EXPECT_EQ(recorder.view.start.sizes(), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(recorder.view.first_key[99].item<int>(), 0);
  EXPECT_EQ(recorder.view.first_key[100].item<int>(), 100);
}

std::vector<at::Tensor> gradients(Decoder& decoder, const ForwardOptions& options) {
  const at::Tensor tokens = (at::zeros({30}, at::kLong) + 7).cumsum(0).remainder(48);
  decoder.hidden(tokens, row_offsets({0, 12}), {}, options).pow(2).sum().backward();
  std::vector<at::Tensor> grads;
  decoder.parameters([&](const std::string&, Parameter& parameter) {
    if (!parameter.value.grad().defined()) return;
    grads.push_back(parameter.value.grad());
    parameter.value.mutable_grad() = at::Tensor();
  });
  return grads;
}

TEST(Decoder, RecomputationChangesNoBit) {
  Decoder decoder(pro_config(), /*seed=*/3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    decoder.set_compute_dtype(dtype);
    const auto stored = gradients(decoder, {});
    const auto recomputed = gradients(decoder, {.checkpoint_activations = true});
    ASSERT_EQ(stored.size(), recomputed.size());
    for (std::size_t i = 0; i < stored.size(); ++i) EXPECT_BITWISE_EQUAL(recomputed[i], stored[i]);
  }
}

TEST(Checkpointed, GradientsOfInputsAndCapturedTensors) {
  const at::Tensor weight = at::randn({3}).requires_grad_(true);
  const at::Tensor x = at::randn({3}).requires_grad_(true);
  int num_runs = 0;
  const Segment segment = [&](const std::vector<at::Tensor>& in) {
    ++num_runs;
    return std::vector<at::Tensor>{in[0] * weight, in[0] + 1};
  };
  const auto out = checkpointed(segment, {x});
  EXPECT_EQ(num_runs, 1);
  out[0].sum().backward();  // the second output is not used
  EXPECT_EQ(num_runs, 2);
  EXPECT_BITWISE_EQUAL(x.grad(), weight.detach());
  EXPECT_BITWISE_EQUAL(weight.grad(), x.detach());
}

TEST(Checkpointed, RejectsSecondDerivatives) {
  const Segment squared = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0] * in[0]};
  };
  const at::Tensor x = at::randn({3}).requires_grad_(true);
  const at::Tensor sum = checkpointed(squared, {x})[0].sum();
  EXPECT_THROW(torch::autograd::grad({sum}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               Error);
}

TEST(Decoder, RefreshComputeFollowsTheMasters) {
  const at::NoGradGuard no_grad;
  Decoder decoder(test::small_config());
  decoder.set_compute_dtype(at::kBFloat16);
  EXPECT_EQ(decoder.compute_dtype(), at::kBFloat16);
  decoder.parameters([](const std::string& name, Parameter& parameter) {
    EXPECT_EQ(parameter.compute.defined(), parameter.product) << name;
    parameter.value.add_(1);
  });
  decoder.refresh_compute();
  decoder.parameters([](const std::string& name, Parameter& parameter) {
    if (!parameter.product) return;
    EXPECT_BITWISE_EQUAL(parameter.compute, parameter.value.detach().to(at::kBFloat16)) << name;
  });
}

TEST(Score, IsTheLogSoftmaxOfTheLogits) {
  Decoder decoder(pro_config(), /*seed=*/3);
  test::spread_weights(decoder, 3);
  const at::Tensor tokens = at::randint(48, {40}, at::kLong);
  const at::Tensor targets = at::randint(48, {40}, at::kLong);
  const TokenScores scores = score(decoder, tokens, row_offsets({0, 9}), targets);
  const at::Tensor all = logits(decoder, decoder.hidden(tokens, row_offsets({0, 9})));
  const at::Tensor expected = at::log_softmax(all, -1).gather(1, targets.unsqueeze(1)).squeeze(1);
  EXPECT_TENSORS_NEAR(scores.logprob, expected, 1e-5, 0);
  EXPECT_BITWISE_EQUAL(scores.greedy, all.argmax(-1));
  EXPECT_FALSE(scores.logprob.requires_grad());
  const at::Tensor rows = at::tensor(std::vector<int64_t>{3, 39}, at::kLong);
  EXPECT_TENSORS_NEAR(logits(decoder, decoder.hidden(tokens, row_offsets({0, 9})), rows),
                      all.index_select(0, rows),
                      1e-6,
                      1e-6);
  EXPECT_THROW(score(decoder, tokens, row_offsets({0}), targets.narrow(0, 0, 3)), Error);
  EXPECT_THROW(logits(decoder, at::randn({3, 31})), Error);
}

// Strong forgetting: most pages of a long sequence go, and what follows stays the same.
TEST(Decoder, EvictedPagesAreNotMissed) {
  const at::NoGradGuard no_grad;
  DecoderConfig config = pro_config();
  Decoder decoder(config, /*seed=*/3);  // gate bias 0: half of the past is forgotten per token
  config.attention.window = 70;
  Decoder windowed(config, /*seed=*/3);
  const at::Tensor tokens = at::randint(48, {400}, at::kLong);
  for (Decoder* model : {&decoder, &windowed}) {
    const at::Tensor full = model->hidden(tokens, row_offsets({0}));
    const auto pool = make_page_pool(*model);
    SequenceState state(*model, pool);
    SequenceState* states[] = {&state};
    model->hidden(tokens.narrow(0, 0, 300), row_offsets({0}), states);
    const int64_t before = pool->pages_in_use();
    const int64_t freed = model->evict(states, /*log_tolerance=*/-10);
    EXPECT_EQ(pool->pages_in_use(), before - freed);
    EXPECT_GE(freed, before / 2);
    const at::Tensor rest = model->hidden(tokens.narrow(0, 300, 100), row_offsets({0}), states);
    EXPECT_TENSORS_NEAR(rest, full.narrow(0, 300, 100), 1e-3, 0);
    EXPECT_THROW(state.truncate(192), Error);  // below the horizon, the last page end
    EXPECT_NO_THROW(state.truncate(256));
    EXPECT_THROW(model->evict(states, 1), Error);
  }
}

TEST(Decoder, PagesAreFreedWithTheirStates) {
  Decoder decoder(pro_config());
  const auto pool = make_page_pool(decoder);
  {
    SequenceState state(decoder, pool);
    SequenceState* states[] = {&state};
    decoder.hidden(at::zeros({100}, at::kLong), row_offsets({0}), states);
    EXPECT_EQ(pool->pages_in_use(), 2 * 2 * 4);  // two pages, layers, heads
    const SequenceState fork = state.fork();
    EXPECT_EQ(pool->pages_in_use(), 2 * 2 * 4);
  }
  EXPECT_EQ(pool->pages_in_use(), 0);
}

}  // namespace
}  // namespace reynard::models
