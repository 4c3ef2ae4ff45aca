// The task `pruning`: of which models and layers it knows what is skipped.

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/models/decoder.h"
#include "reynard/tensor/error.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::evaluation {
namespace {

std::vector<int64_t> tokens_of_a_text() {
  std::vector<int64_t> tokens(1500);
  for (int64_t i = 0; i < 1500; ++i) tokens[i] = (i * i * 7 + i) % 50;
  return tokens;
}

// Of layers that read a memory it is not known what pruning skips.
TEST(Pruning, IsKnownOfLayersWithoutAMemory) {
  const auto pruning_with = [](const std::vector<int64_t>& memory_layers) {
    models::DecoderConfig model;
    model.vocab_size = 50;
    model.hidden_size = 32;
    model.num_layers = 2;
    model.attention.num_heads = 2;
    model.attention.qk_norm = models::QKNorm::kPerHead;
    model.attention.forget_gate = models::ForgetGate::kFixed;
    model.attention.decay_time_min = 2;
    model.attention.decay_time_max = 4;
    model.mixer = "memory_attention";
    model.memory.window = 256;
    model.memory.layers = memory_layers;
    models::Decoder decoder(model, 2);
    const Corpus corpus = test::corpus_of(tokens_of_a_text(), {1500});
    EvaluationConfig config;
    config.pruning = {.length = 512, .rows = 2};
    const auto task = task_named("pruning").make(
        corpus, config, {.forgets = true, .memory_layers = memory_layers});
    EXPECT_EQ(task->settings().value("scoring", 0), 1);
    const test::TempDir folder;
    evaluate(*make_decoder_scorer(decoder, 1024), *task, {.folder = folder.path()});
    return nlohmann::json::parse(test::read_file(folder / "pruning.json"));
  };
  const auto one = pruning_with({1});
  const auto shares = one.at("series").at("pruned_share");
  double mean = 0;
  for (size_t h = 0; h < shares[0].size(); ++h) {
    mean += shares[0][h].get<double>() / static_cast<double>(shares[0].size());
    EXPECT_TRUE(shares[1][h].is_null()) << shares;
  }
  EXPECT_GT(mean, 0.1);
  EXPECT_NEAR(one.at("metrics").at("pruned_share"), mean, 1e-9);
  EXPECT_TRUE(pruning_with({0, 1}).at("metrics").at("pruned_share").is_null());
}

// Loses 2 where it may drop what is forgotten, else 1.
class Loser final : public Scorer {
 public:
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      const auto* score = std::get_if<Score>(&request.query);
      if (score == nullptr) {
        responses.emplace_back(Probed());
        continue;
      }
      const float loss = score->log_pruning_tolerance.value() < 0 ? 2 : 1;
      Scored scored;
      scored.logprobs.assign(score->continuation.size(), -loss);
      scored.hits.assign(score->continuation.size(), 0);
      responses.emplace_back(std::move(scored));
    }
    return responses;
  }
};

TEST(Pruning, DifferenceIsWhatTheLossGainsByIt) {
  const Corpus corpus = test::corpus_of(tokens_of_a_text(), {1500});
  EvaluationConfig config;
  config.pruning = {.length = 64, .rows = 3};
  const auto task = task_named("pruning").make(corpus, config, {.forgets = true});
  const test::TempDir folder;
  Loser scorer;
  const auto metrics = evaluate(scorer, *task, {.folder = folder.path()}).at("metrics");
  EXPECT_EQ(metrics.at("loss_pruned"), 2);
  EXPECT_EQ(metrics.at("loss_unpruned"), 1);
  EXPECT_EQ(metrics.at("loss_difference"), 1);
}

TEST(Pruning, NeedsForgetGates) {
  const Corpus corpus = test::corpus_of(tokens_of_a_text(), {1500});
  EXPECT_THROW(task_named("pruning").make(corpus, {}, {.forgets = false}), Error);
}

}  // namespace
}  // namespace reynard::evaluation
