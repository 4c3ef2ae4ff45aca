// Training of a memory: which contexts see which, and where gradients go.

#include "reynard/models/crossbatch.h"

#include "reynard/models/decoder.h"
#include "reynard/tensor/error.h"
#include "tests/models/crossbatch_model.h"
#include "tests/support/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace reynard::models {
namespace {

// Every token of the batch is another one.
at::Tensor distinct_tokens(const Crossbatch& cross) {
  return at::arange(cross.rows * cross.contexts * kL, at::kLong);
}

// Contexts u whose output changes with the tokens of context `changed`.
std::set<int64_t> readers_of(Decoder& decoder, const Crossbatch& cross, int64_t changed) {
  const at::NoGradGuard no_grad;
  at::Tensor tokens = distinct_tokens(cross);
  const at::Tensor before = hidden(decoder, tokens, cross);
  context(tokens, changed).fill_(127);
  const at::Tensor moved = (hidden(decoder, tokens, cross) - before).abs();
  std::set<int64_t> readers;
  for (int64_t u = 0; u < cross.rows * cross.contexts; ++u) {
    if (u != changed && context(moved, u).max().item<double>() > 0) readers.insert(u);
  }
  return readers;
}

TEST(Crossbatch, ContextsSeeEarlierOnesOfTheNextRows) {
  Decoder decoder = crossbatch_decoder(config_of(false));
  const Crossbatch cross{.rows = 4, .contexts = 3, .documents = 2};
  // Contexts of row i are 3 i, 3 i + 1, 3 i + 2; row i is read by itself and by row i - 1.
  EXPECT_EQ(readers_of(decoder, cross, 3), (std::set<int64_t>{4, 5, 1, 2}));
  EXPECT_EQ(readers_of(decoder, cross, 4), (std::set<int64_t>{5, 2}));
  EXPECT_EQ(readers_of(decoder, cross, 5), (std::set<int64_t>{}));
  EXPECT_EQ(readers_of(decoder, cross, 0), (std::set<int64_t>{1, 2, 10, 11})) << "around the end";
}

// k = 4, R = 3: contexts 0 to 3 of a pack see 0, 2, 3 and 3 others, none before the first pack.
TEST(Crossbatch, PacksAreThoseOfLongLlama3B) {
  Decoder decoder = crossbatch_decoder(config_of(false));
  const Crossbatch cross{.rows = 2, .contexts = 4, .documents = 1, .rule = CrossbatchRule::kPacks};
  std::vector<std::set<int64_t>> seen(8);
  for (int64_t u = 0; u < 8; ++u) {
    for (const int64_t reader : readers_of(decoder, cross, u)) seen[reader].insert(u);
  }
  EXPECT_EQ(seen,
            (std::vector<std::set<int64_t>>{
                {}, {0}, {0, 1}, {0, 1, 2}, {}, {3, 4}, {3, 4, 5}, {4, 5, 6}}));
}

// Of its own document a context sees what it sees at inference.
TEST(Crossbatch, OneDocumentIsInference) {
  for (const bool gated : {false, true}) {
    for (const MemoryDecay decay : {MemoryDecay::kNone, MemoryDecay::kDistance}) {
      Decoder decoder = crossbatch_decoder(config_of(gated, decay));
      const Crossbatch cross{.rows = 2, .contexts = 3, .documents = 1};
      const at::NoGradGuard no_grad;
      const at::Tensor tokens = distinct_tokens(cross);
      const at::Tensor offsets = at::arange(0, 2, at::kLong) * 3 * kL;
      EXPECT_TENSORS_NEAR(
          hidden(decoder, tokens, cross), decoder.hidden(tokens, offsets), 2e-5, 1e-5);
    }
  }
}

// The loss of row 0's last context as a function of the embedding of a token of another document.
struct OtherDocument {
  Decoder decoder;
  Crossbatch cross;
  at::Tensor weights = at::randn({kL, 32});
  at::Tensor embedding = {};

  OtherDocument(const DecoderConfig& config, const Crossbatch& crossbatch)
      : decoder(crossbatch_decoder(config)), cross(crossbatch) {
    decoder.parameters([&](const std::string& name, Parameter& parameter) {
      if (name == "model.embeddings.weight") embedding = parameter.value;
    });
  }
  at::Tensor loss() {
    return (context(hidden(decoder, distinct_tokens(cross), cross), 1) * weights).sum();
  }
  // (L, C): of the tokens of row 1's first context.
  at::Tensor gradient() {
    embedding.mutable_grad() = at::Tensor();
    loss().backward();
    return embedding.grad().narrow(0, 2 * kL, kL);
  }
};

TEST(Crossbatch, GradientReachesKeysOfOtherDocuments) {
  for (const CrossbatchRule rule : {CrossbatchRule::kRows, CrossbatchRule::kPacks}) {
    // In packs a context sees those before it: then row 1 reads row 0.
    const bool rows = rule == CrossbatchRule::kRows;
    const Crossbatch cross{.rows = 3, .contexts = 2, .documents = 2, .rule = rule};
    OtherDocument test(config_of(false), cross);
    const int64_t read = rows ? 2 : 0, reader = rows ? 1 : 3;
    const auto terms = [&] {
      const at::Tensor read_on =
          context(hidden(test.decoder, distinct_tokens(cross), cross), reader);
      return read_on.to(at::kDouble) * test.weights;
    };
    const auto loss = [&] { return terms().sum(); };
    loss().backward();
    const at::Tensor gradient = test.embedding.grad().narrow(0, read * kL, kL).clone();
    EXPECT_GT(gradient.abs().max().item<double>(), 1e-2);
    const at::NoGradGuard no_grad;
    constexpr float kStep = 2e-2F;
    // Richardson: the third derivative cancels; the fifth leaves an error that falls with step^4,
    // measured as 0.1 with a step of 0.1. The f32 hidden values are off by independent errors of up
    // to 8 units in the last place (measured: 5), which the four losses carry 3 / step times.
    const double truncation = 0.1 * std::pow(kStep / 0.1, 4);
    const double rounding = 3 / kStep * 8 * 0x1p-24 * terms().norm().item<double>();
    const auto difference = [&](at::Tensor element, float step) {
      element += step;
      const double up = loss().item<double>();
      element -= 2 * step;
      const double down = loss().item<double>();
      element += step;
      return (up - down) / (2 * step);
    };
    for (const int64_t column : {0, 7, 31}) {
      for (int64_t t = 0; t < kL; ++t) {
        const at::Tensor element = test.embedding[read * kL + t][column];
        const double expected =
            (4 * difference(element, kStep / 2) - difference(element, kStep)) / 3;
        EXPECT_NEAR(gradient[t][column].item<double>(), expected, truncation + rounding)
            << t << ", " << column;
      }
    }
  }
}

TEST(Crossbatch, OneDocumentOrAStopGivesOtherDocumentsNoGradient) {
  OtherDocument alone(config_of(false), {.rows = 3, .contexts = 2, .documents = 1});
  EXPECT_EQ(alone.gradient().abs().max().item<double>(), 0);
  for (const bool gated : {false, true}) {
    OtherDocument stopped(config_of(gated),
                          {.rows = 3, .contexts = 2, .documents = 2, .stop_gradient = true});
    EXPECT_EQ(stopped.gradient().abs().max().item<double>(), 0);
    const at::Tensor own = stopped.embedding.grad();
    EXPECT_EQ(own.narrow(0, 0, kL).abs().max().item<double>(), 0) << "its own earlier context";
    EXPECT_GT(own.narrow(0, kL, kL).abs().max().item<double>(), 1e-2);
  }
}

TEST(Crossbatch, BatchesThatDoNotDivideAreRefused) {
  Decoder decoder = crossbatch_decoder(config_of(false));
  const at::Tensor tokens = at::arange(20, at::kLong);
  const auto run = [&](const Crossbatch& cross) { return hidden(decoder, tokens, cross); };
  EXPECT_THROW(run({.rows = 3, .contexts = 1}), Error);
  EXPECT_THROW(run({.rows = 2, .contexts = 2, .documents = 3}), Error);
  EXPECT_THROW(decoder.hidden(tokens,
                              at::zeros({1}, at::kLong),
                              {},
                              {.crossbatch = Crossbatch{.rows = 2, .contexts = 2}}),
               Error);
}

}  // namespace
}  // namespace reynard::models
