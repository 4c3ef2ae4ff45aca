// What every mixer of the registry must do in a decoder, and every variant of the attention mixer.

#include "reynard/attention/cache.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/registry.h"
#include "reynard/models/state.h"
#include "reynard/ops/cross_entropy.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/device.h"
#include "tests/support/files.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace reynard::models {
namespace {

// The models of this folder are so small that threads only wait for each other.
struct OneThread : testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const auto* const one_thread = testing::AddGlobalTestEnvironment(new OneThread);

at::Tensor offsets_of(const std::vector<int64_t>& offsets) {
  return at::tensor(offsets, at::kLong);
}

at::Tensor random_tokens(const DecoderConfig& config, int64_t count) {
  return at::randint(config.vocab_size, {count}, at::kLong);
}

Decoder make_decoder(const DecoderConfig& config) {
  Decoder decoder(config, /*seed=*/5, test::test_device());
  test::spread_weights(decoder, 3);
  return decoder;
}

// Every mixer of the registry with its defaults, and all variants of attention and memory.
std::vector<test::Variant> all_variants() {
  std::vector<test::Variant> variants = test::attention_variants();
  variants.insert(variants.end(), test::llama_variants().begin(), test::llama_variants().end());
  for (const test::Variant& variant : test::memory_variants()) variants.push_back(variant);
  for (const MixerEntry& mixer : mixers()) {
    test::Variant variant{"default_" + std::string(mixer.name), test::small_config()};
    variant.config.mixer = mixer.name;
    variants.push_back(variant);
  }
  return variants;
}

class Conformance : public testing::TestWithParam<test::Variant> {
 protected:
  const DecoderConfig& config() const { return GetParam().config; }
};

class PrunedConformance : public Conformance {};

TEST_P(Conformance, ShapesAndCausality) {
  const at::NoGradGuard no_grad;
  Decoder decoder = make_decoder(config());
  at::Tensor tokens = random_tokens(config(), 40);
  const at::Tensor before = decoder.hidden(tokens, offsets_of({0}));
  ASSERT_EQ(before.sizes(), (std::vector<int64_t>{40, config().hidden_size}));
  tokens[25] = (tokens[25] + 1) % config().vocab_size;
  const at::Tensor after = decoder.hidden(tokens, offsets_of({0}));
  EXPECT_TENSORS_NEAR(after.narrow(0, 0, 25), before.narrow(0, 0, 25), 1e-6, 0);
  EXPECT_GT((after[25] - before[25]).abs().max().item<double>(), 1e-3);
  EXPECT_GT((after[26] - before[26]).abs().max().item<double>(), 1e-7) << "no memory at all";
}

TEST_P(Conformance, RaggedIsEachSequenceAlone) {
  const at::NoGradGuard no_grad;
  Decoder decoder = make_decoder(config());
  const at::Tensor tokens = random_tokens(config(), 50);
  const at::Tensor together = decoder.hidden(tokens, offsets_of({0, 1, 18}));
  const std::array<int64_t, 4> bounds = {0, 1, 18, 50};
  for (int s = 0; s < 3; ++s) {
    const int64_t length = bounds[s + 1] - bounds[s];
    const at::Tensor alone = decoder.hidden(tokens.narrow(0, bounds[s], length), offsets_of({0}));
    EXPECT_TENSORS_NEAR(together.narrow(0, bounds[s], length), alone, 2e-5, 1e-5) << s;
  }
}

// Prefill in chunks, then decode: three sequences of other lengths in the same calls.
TEST_P(Conformance, CachedStepsAreTheFullForward) {
  Decoder decoder = make_decoder(config());
  const auto pool = make_page_pool(decoder);
  const std::array<int64_t, 3> lengths = {90, 70, 7};
  // Tokens that each sequence adds per call; a call without tokens for a sequence leaves it out.
  const std::vector<std::array<int64_t, 3>> calls = {
      {65, 1, 0}, {1, 60, 3}, {20, 1, 1}, {1, 1, 1}, {1, 0, 1}, {2, 7, 1}};
  std::vector<SequenceState> states;
  std::vector<at::Tensor> tokens, full, seen(3);
  for (const int64_t length : lengths) {
    states.emplace_back(decoder, pool);
    tokens.push_back(random_tokens(config(), length));
    full.push_back(decoder.hidden(tokens.back(), offsets_of({0})).detach());
  }
  for (const auto& call : calls) {
    std::vector<at::Tensor> chunks;
    std::vector<int64_t> offsets, members;
    std::vector<SequenceState*> callers;
    int64_t rows = 0;
    for (int64_t s = 0; s < 3; ++s) {
      if (call[s] == 0) continue;
      chunks.push_back(tokens[s].narrow(0, states[s].length(), call[s]));
      offsets.push_back(rows);
      members.push_back(s);
      callers.push_back(&states[s]);
      rows += call[s];
    }
    const at::Tensor hidden = decoder.hidden(at::cat(chunks), offsets_of(offsets), callers);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const int64_t s = members[i];
      const at::Tensor mine = hidden.narrow(0, offsets[i], call[s]);
      seen[s] = seen[s].defined() ? at::cat({seen[s], mine}) : mine;
    }
  }
  for (int64_t s = 0; s < 3; ++s) {
    ASSERT_EQ(states[s].length(), lengths[s]);
    EXPECT_TENSORS_NEAR(seen[s], full[s], 5e-5, 1e-5) << "sequence " << s;
  }
}

TEST_P(Conformance, ForkTruncateAndSnapshotGoOnAsIfNothingHappened) {
  Decoder decoder = make_decoder(config());
  const auto pool = make_page_pool(decoder);
  const at::Tensor tokens = random_tokens(config(), 100);
  const at::Tensor full = decoder.hidden(tokens, offsets_of({0})).detach();
  const auto go_on = [&](SequenceState& state, int64_t end) {
    const int64_t begin = state.length();
    SequenceState* states[] = {&state};
    const at::Tensor hidden =
        decoder.hidden(tokens.narrow(0, begin, end - begin), offsets_of({0}), states);
    EXPECT_TENSORS_NEAR(hidden, full.narrow(0, begin, end - begin), 5e-5, 1e-5)
        << begin << " to " << end;
  };
  SequenceState state(decoder, pool);
  go_on(state, 70);
  SequenceState fork = state.fork();
  {
    // The fork goes another way; the original must not notice.
    SequenceState* states[] = {&fork};
    decoder.hidden(random_tokens(config(), 9), offsets_of({0}), states);
  }
  go_on(state, 90);
  state.truncate(83);
  go_on(state, 84);
  fork.truncate(69);  // before its own way
  go_on(fork, 80);
  fork.truncate(64);  // a page end
  go_on(fork, 65);
  // A local context that has left to the memory does not come back.
  EXPECT_EQ(fork.can_truncate(0), !config().has_memory() || config().memory.window > 79);
  if (fork.can_truncate(0)) {
    fork.truncate(0);
    go_on(fork, 10);
  }

  const auto other_pool = make_page_pool(decoder);
  SequenceState restored = SequenceState::restore(other_pool, state.snapshot());
  EXPECT_EQ(restored.length(), 84);
  go_on(restored, 100);
  EXPECT_THROW(state.truncate(85), Error);
  EXPECT_THROW(state.truncate(-1), Error);
}

TEST_P(Conformance, SavedAndLoadedIsTheSame) {
  const at::NoGradGuard no_grad;
  Decoder decoder = make_decoder(config());
  const test::TempDir parent;
  save_model(decoder, parent / "model");
  Decoder loaded = load_model(parent / "model", test::test_device());
  const at::Tensor tokens = random_tokens(config(), 30);
  EXPECT_BITWISE_EQUAL(loaded.hidden(tokens, offsets_of({0})),
                       decoder.hidden(tokens, offsets_of({0})));
}

// One batch is learned by heart, which needs gradients in every parameter.
TEST_P(Conformance, OneBatchIsOverfitted) {
  Decoder decoder(config(), /*seed=*/1, test::test_device());
  // Every token once: even a model without positions can tell the targets apart.
  const at::Tensor tokens = at::randperm(config().vocab_size, at::kLong).narrow(0, 0, 24);
  const at::Tensor targets = random_tokens(config(), 24);
  std::vector<at::Tensor> values, firsts, seconds;
  decoder.parameters([&](const std::string&, Parameter& parameter) {
    if (parameter.frozen) return;
    values.push_back(parameter.value);
    firsts.push_back(at::zeros_like(parameter.value.detach()));
    seconds.push_back(at::zeros_like(parameter.value.detach()));
  });
  double loss_value = 0;
  constexpr int kSteps = 60;
  for (int step = 1; step <= kSteps; ++step) {
    const at::Tensor hidden = decoder.hidden(tokens, offsets_of({0, 5}));
    const at::Tensor loss = ops::cross_entropy(hidden, decoder.head().value, {}, targets) / 24.0;
    loss.backward();
    loss_value = loss.item<double>();
    std::vector<at::Tensor> grads;
    for (const at::Tensor& value : values) grads.push_back(value.grad());
    if (step == 2) {
      decoder.parameters([](const std::string& name, Parameter& parameter) {
        if (parameter.frozen) return;
        ASSERT_TRUE(parameter.value.grad().defined()) << name;
        EXPECT_GT(parameter.value.grad().abs().max().item<double>(), 0) << name;
      });
    }
    const at::NoGradGuard no_grad;
    // At a rate that stays as it is the loss leaps now and then, perhaps at the last step.
    const double falling = 0.02 * (1 - (step - 1.0) / kSteps);
    for (std::size_t i = 0; i < values.size(); ++i) {
      firsts[i].mul_(0.9).add_(grads[i], 0.1);
      seconds[i].mul_(0.95).addcmul_(grads[i], grads[i], 0.05);
      const double rate = falling * std::sqrt(1 - std::pow(0.95, step)) / (1 - std::pow(0.9, step));
      values[i].addcdiv_(firsts[i], seconds[i].sqrt().add_(1e-8), -rate);
      values[i].mutable_grad() = at::Tensor();
    }
  }
  EXPECT_LT(loss_value, 0.1) << "started at " << std::log(config().vocab_size);
}

TEST_P(Conformance, Bf16ProductsStayClose) {
  const at::NoGradGuard no_grad;
  Decoder decoder = make_decoder(config());
  const at::Tensor tokens = random_tokens(config(), 40);
  const at::Tensor exact = decoder.hidden(tokens, offsets_of({0}));
  decoder.set_compute_dtype(at::kBFloat16);
  const at::Tensor rounded = decoder.hidden(tokens, offsets_of({0})).to(at::kFloat);
  // 8 bits of mantissa through a few dozen products of order 1.
  const double error = (rounded - exact).norm().item<double>() / exact.norm().item<double>();
  EXPECT_LT(error, 0.05);
  EXPECT_GT(error, 1e-5) << "nothing was rounded";
  decoder.set_compute_dtype(at::kFloat);
  EXPECT_BITWISE_EQUAL(decoder.hidden(tokens, offsets_of({0})), exact);
}

TEST_P(PrunedConformance, MovesLittle) {
  DecoderConfig pruned = config();
  const at::NoGradGuard no_grad;
  pruned.attention.log_pruning_tolerance = -10;
  Decoder with = make_decoder(pruned), without = make_decoder(config());
  const at::Tensor tokens = random_tokens(config(), 700);
  EXPECT_TENSORS_NEAR(with.hidden(tokens, offsets_of({0, 90})),
                      without.hidden(tokens, offsets_of({0, 90})),
                      2e-3,
                      0);
}

INSTANTIATE_TEST_SUITE_P(All, Conformance, testing::ValuesIn(all_variants()), [](const auto& info) {
  return info.param.name;
});

std::vector<test::Variant> variants_that_prune() {
  std::vector<test::Variant> variants = all_variants();
  std::erase_if(variants, [](const test::Variant& v) { return v.config.mixer != "attention"; });
  return variants;
}

INSTANTIATE_TEST_SUITE_P(All,
                         PrunedConformance,
                         testing::ValuesIn(variants_that_prune()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace reynard::models
