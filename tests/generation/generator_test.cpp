#include "reynard/generation/generator.h"

#include "reynard/generation/sampler.h"
#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/tensor/check.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace reynard::generation {
namespace {

const at::Tensor kLogits = at::tensor({0.0F, 2.0F, 1.0F, -1.0F});

TEST(Sampler, GreedyTakesTheMostProbableAndOfEqualsTheFirst) {
  Sampler greedy({});
  EXPECT_EQ(greedy.next(kLogits), 1);
  EXPECT_EQ(greedy.next(at::tensor({3.0F, 5.0F, 5.0F})), 1);
}

TEST(Sampler, FollowsTheDistributionAtItsTemperature) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    Sampler sampler({.temperature = temperature, .seed = 7});
    std::map<int64_t, int> counts;
    const int draws = 4000;
    for (int i = 0; i < draws; ++i) ++counts[sampler.next(kLogits)];
    double total = 0;
    for (const double x : {0.0, 2.0, 1.0, -1.0}) total += std::exp(x / temperature);
    for (int64_t id = 0; id < 4; ++id) {
      const double p = std::exp(kLogits[id].item<double>() / temperature) / total;
      // Five standard deviations of a binomial.
      EXPECT_NEAR(counts[id] / double{draws}, p, 5 * std::sqrt(p * (1 - p) / draws)) << id;
    }
  }
}

TEST(Sampler, TopKAndTopPKeepOnlyTheMostProbable) {
  Sampler top_k({.temperature = 1, .top_k = 2, .seed = 1});
  // p = 0.087, 0.644, 0.237, 0.032: the first reaches 0.6 alone.
  Sampler top_p({.temperature = 1, .top_p = 0.6, .seed = 1});
  for (int i = 0; i < 200; ++i) {
    const int64_t id = top_k.next(kLogits);
    EXPECT_TRUE(id == 1 || id == 2) << id;
    EXPECT_EQ(top_p.next(kLogits), 1);
  }
}

TEST(Sampler, SameSeedSameTokens) {
  Sampler first({.temperature = 1, .seed = 3});
  Sampler second({.temperature = 1, .seed = 3});
  for (int i = 0; i < 50; ++i) EXPECT_EQ(first.next(kLogits), second.next(kLogits));
}

TEST(Sampler, RejectsWhatMakesNoSense) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  try {
    Sampler({.top_p = 1.0000001});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "sampler: top_p = 1.0000001; expected 0 to 1, 0: all");
  }
  Sampler sampler({});
  EXPECT_THROW(sampler.next(at::tensor({std::numeric_limits<float>::quiet_NaN()})), Error);
  EXPECT_THROW(sampler.next(at::zeros({0})), Error);
}

models::DecoderConfig small_config() {
  models::DecoderConfig config;
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.initializer_range = 0.3;
  config.attention.num_heads = 2;
  config.attention.key_shift = true;
  return config;
}

TEST(Generate, IsDeterministicAndStops) {
  models::Decoder decoder(small_config(), 1);
  const std::vector<int64_t> prompt{1, 2, 3};
  std::vector<int64_t> seen;
  GenerateOptions options{.max_tokens = 12};
  options.on_token = [&](int64_t token) { seen.push_back(token); };
  const std::vector<int64_t> text = generate(decoder, prompt, options);
  EXPECT_EQ(text.size(), 12);
  EXPECT_EQ(text, seen);
  EXPECT_EQ(generate(decoder, prompt, {.max_tokens = 12}), text);

  const int64_t stop = text[4];
  const auto first = std::find(text.begin(), text.end(), stop);
  EXPECT_EQ(generate(decoder, prompt, {.max_tokens = 12, .stop = {stop}}),
            std::vector<int64_t>(text.begin(), first));
}

// Greedy text, token by token from the cache, is what whole forwards over all tokens so far choose.
TEST(Generate, CachedStepsAreTheWholeForward) {
  models::Decoder decoder(small_config(), 1);
  std::vector<int64_t> tokens{1, 2, 3};
  const std::vector<int64_t> text = generate(decoder, tokens, {.max_tokens = 80});
  for (const int64_t token : text) {
    const at::Tensor all = at::tensor(tokens, at::kLong);
    const at::Tensor hidden = decoder.hidden(all, at::zeros({1}, at::kLong));
    const at::Tensor logits = models::logits(decoder, hidden)[-1];
    ASSERT_EQ(logits.argmax().item<int64_t>(), token) << tokens.size();
    tokens.push_back(token);
  }
}

TEST(Generate, RejectsBadRequests) {
  models::Decoder decoder(small_config(), 1);
  const std::vector<int64_t> none;
  const std::vector<int64_t> outside{40};
  const std::vector<int64_t> fine{1};
  EXPECT_THROW(generate(decoder, none, {}), Error);
  EXPECT_THROW(generate(decoder, outside, {}), Error);
  EXPECT_THROW(generate(decoder, fine, {.max_tokens = -1}), Error);
  EXPECT_TRUE(generate(decoder, fine, {.max_tokens = 0}).empty());
}

}  // namespace
}  // namespace reynard::generation
