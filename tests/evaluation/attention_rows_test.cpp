// Shares of attention in layers with a memory, against the rule computed plainly in f64.

#include "reynard/evaluation/attention_rows.h"

#include "reynard/evaluation/attention_maps.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/inspect.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/models/decoder.h"
#include "tests/models/plain_memory_model.h"
#include "tests/support/compare.h"
#include "tests/support/corpus.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace reynard::evaluation {
namespace {

constexpr int64_t kContext = 16;

// Layers 0 and 2 have a memory, layer 1 has none. A small rope_base turns every pair of a key.
models::Decoder decoder_with_memory(int64_t num_kv_heads,
                                    models::MemoryMerge merge = models::MemoryMerge::kJoint,
                                    int64_t top_k = 0) {
  models::DecoderConfig config = test::small_config();
  config.vocab_size = 128;
  config.num_layers = 3;
  config.mixer = "memory_attention";
  config.attention.forget_gate = models::ForgetGate::kNone;
  config.attention.rope = true;
  config.attention.rope_base = 100;
  config.attention.num_kv_heads = num_kv_heads;
  config.memory.window = kContext;
  config.memory.layers = {0, 2};
  config.memory.merge = merge;
  config.memory.top_k = top_k;
  models::Decoder decoder(config, /*seed=*/5);
  test::spread_weights(decoder, 3);
  return decoder;
}

std::vector<int64_t> tokens_of_a_text(int64_t count) {
  std::vector<int64_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = (i * i * 7 + 5 * i) % 47;
  return tokens;
}

// Every token once: equal ones have equal keys, of which the search takes the oldest.
std::vector<int64_t> distinct_tokens(int64_t count) {
  std::vector<int64_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = i * 37 % 127;
  return tokens;
}

std::vector<int64_t> context_begins(int64_t T) {
  std::vector<int64_t> begins;
  for (int64_t begin = 0; begin < T; begin += kContext) begins.push_back(begin);
  return begins;
}

// (H, T, T) of one layer.
at::Tensor plain_shares(models::Decoder& decoder,
                        int64_t layer,
                        const std::vector<int64_t>& tokens) {
  return test::PlainMemoryModel(decoder).shares(
      layer, at::tensor(tokens, at::kLong), context_begins(static_cast<int64_t>(tokens.size())));
}

// Texts that end within their first context, with it, and in the fifth.
TEST(AttentionRows, OfLayersWithAMemoryAreThoseOfThePlainRule) {
  using models::MemoryMerge;
  for (const auto& [G, merge] : {std::pair{4, MemoryMerge::kJoint},
                                 {2, MemoryMerge::kJoint},
                                 {1, MemoryMerge::kJoint},
                                 {2, MemoryMerge::kGated}}) {
    models::Decoder decoder = decoder_with_memory(G, merge);
    const auto scorer = make_decoder_scorer(decoder, 1000);
    for (const int64_t T : {9, 16, 17, 71}) {
      const std::vector<int64_t> tokens = tokens_of_a_text(T);
      const auto answers = scorer->answer(std::vector<Request>{{"probe", {}, Probe{tokens}}});
      const auto& layers = std::get<Probed>(answers[0]).layers;
      ASSERT_EQ(layers.size(), 3);
      for (int64_t layer = 0; layer < 3; ++layer) {
        EXPECT_TENSORS_NEAR(cell_maps(layers[layer], {.cells = T}).attention,
                            plain_shares(decoder, layer, tokens).to(at::kFloat),
                            1e-5,
                            1e-4)
            << "layer " << layer << " G " << G << " T " << T
            << (merge == MemoryMerge::kGated ? " gated" : "");
      }
    }
  }
}

// Of the memory the best keys alone, in the fourth context as in the second.
TEST(AttentionRows, OfBestKeysAreThoseOfThePlainRule) {
  using models::MemoryMerge;
  constexpr int64_t kTokens = 4 * kContext;
  const std::vector<int64_t> tokens = distinct_tokens(kTokens);
  for (const MemoryMerge merge : {MemoryMerge::kJoint, MemoryMerge::kGated}) {
    for (const int64_t top_k : {1, 5, 40}) {
      models::Decoder decoder = decoder_with_memory(2, merge, top_k);
      const auto answers = make_decoder_scorer(decoder, 1000)
                               ->answer(std::vector<Request>{{"probe", {}, Probe{tokens}}});
      const auto& layers = std::get<Probed>(answers[0]).layers;
      for (int64_t layer = 0; layer < 3; ++layer) {
        const at::Tensor shares = cell_maps(layers[layer], {.cells = kTokens}).attention;
        EXPECT_TENSORS_NEAR(shares, plain_shares(decoder, layer, tokens).to(at::kFloat), 1e-5, 1e-4)
            << "layer " << layer << " top_k " << top_k
            << (merge == MemoryMerge::kGated ? " gated" : "");
        EXPECT_LE(shares.ne(0).sum(-1).max().item<int64_t>(), top_k + kContext);
      }
    }
  }
}

// Two tokens before the local context from the third one on, both as good.
TEST(AttentionRows, OfEqualKeysTheOldestIsTheBest) {
  models::AttentionView view;
  view.q = at::zeros({4, 1, 8});
  view.k = at::zeros({4, 1, 8});
  view.log_gate = at::tensor({0.F, -3.F, 0.F, 0.F}).unsqueeze(1);  // weighs and does not choose
  view.first_local = at::tensor({0, 0, 2, 2}, at::kInt);
  view.top_k = 1;
  const CellMaps maps = cell_maps(view, {.cells = 4});
  const double far = std::exp(-3.0);
  const at::Tensor expected = at::tensor({far / (far + 2), 0.0, 1 / (far + 2), 1 / (far + 2)});
  EXPECT_TENSORS_NEAR(maps.attention[0][3], expected.to(at::kFloat), 1e-6, 0);
  // What the gates leave does not depend on the choice.
  EXPECT_NEAR(maps.decay[0][3][0].item<double>(), far, 1e-6);
  EXPECT_NEAR(maps.decay[0][3][1].item<double>(), 1, 1e-6);
}

// Every head shown by itself, whose keys are those of its group.
TEST(AttentionRows, OfOneHeadAreThoseOfThePlainRule) {
  models::Decoder decoder = decoder_with_memory(2, models::MemoryMerge::kGated);
  constexpr int64_t kTokens = 40;
  const std::vector<int64_t> tokens = tokens_of_a_text(kTokens);
  const at::Tensor expected = plain_shares(decoder, 2, tokens);
  const auto shown =
      inspect(decoder,
              {{"text", tokens}},
              {.heads = {{2, 0}, {2, 1}, {2, 2}, {2, 3}}, .cells = kTokens, .queries_per_cell = 0},
              [](const auto&) { return "x"; });
  for (int64_t head = 0; head < 4; ++head) {
    const auto map = shown.at("maps")[head].at("whole").at("attention").get<std::vector<double>>();
    size_t at = 0;
    for (int64_t i = 0; i < kTokens; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        // Maps have three digits.
        ASSERT_NEAR(map[at++], expected[head][i][j].item<double>(), 6e-4)
            << "head " << head << " query " << i << " key " << j;
      }
    }
  }
}

// The attention mass of the paper, whose contexts lie in the memory, and what is left for the rest.
TEST(AttentionRows, GiveTheMassOfContextsInAMemory) {
  models::Decoder decoder = decoder_with_memory(2);
  Corpus corpus = test::corpus_of(tokens_of_a_text(240), {60, 120, 180, 240});
  corpus.bos = 1;
  EvaluationConfig config;
  config.attention_mass = {.contexts = {3}, .length = 20, .samples = 2};
  ModelFacts facts;
  facts.memory_layers = {0, 2};
  const auto task = task_named("attention_mass").make(corpus, config, facts);
  const Requests requests = task->requests();
  ASSERT_EQ(requests.size, 2);
  const test::TempDir folder;
  const auto summary =
      evaluate(*make_decoder_scorer(decoder, 1000), *task, {.folder = folder.path()});
  const auto& point = summary.at("series").at("points")[0];
  for (const int64_t layer : {0, 2}) {
    at::Tensor mass = at::zeros({4}, at::kDouble), context_share = mass.clone();
    for (int64_t i = 0; i < requests.size; ++i) {
      const Request request = requests.at(i);
      const auto begins = request.about.at("begins").get<std::vector<int64_t>>();
      const int64_t queries = request.about.at("queries");
      const at::Tensor all =
          plain_shares(decoder, layer, std::get<Probe>(request.query).tokens).slice(1, queries);
      std::vector<at::Tensor> contexts;  // (H, queries) each
      for (const int64_t begin : begins) contexts.push_back(all.narrow(2, begin, 20).sum(2));
      const at::Tensor together = at::stack(contexts).sum(0);
      mass += (contexts[request.about.at("own").get<int64_t>()] / together).mean(1) / 2;
      context_share += together.mean(1) / 2;
    }
    for (int64_t head = 0; head < 4; ++head) {
      EXPECT_NEAR(point.at("mass")[layer][head].get<double>(), mass[head].item<double>(), 1e-5)
          << "layer " << layer << " head " << head;
      EXPECT_NEAR(point.at("context_share")[layer][head].get<double>(),
                  context_share[head].item<double>(),
                  1e-5)
          << "layer " << layer << " head " << head;
    }
  }
}

// Of all keys, not of those that are read.
TEST(AttentionRows, GiveTheSameMassWhateverIsRead) {
  Corpus corpus = test::corpus_of(tokens_of_a_text(240), {60, 120, 180, 240});
  EvaluationConfig config;
  config.attention_mass = {.contexts = {3}, .length = 20, .samples = 2};
  const auto mass_of_first_layer = [&](int64_t top_k) {
    models::Decoder decoder = decoder_with_memory(2, models::MemoryMerge::kJoint, top_k);
    const auto task = task_named("attention_mass").make(corpus, config, {.memory_layers = {0, 2}});
    const test::TempDir folder;
    return evaluate(*make_decoder_scorer(decoder, 1000), *task, {.folder = folder.path()})
        .at("series")
        .at("points")[0]
        .at("mass")[0];
  };
  EXPECT_EQ(mass_of_first_layer(1), mass_of_first_layer(0));
}

}  // namespace
}  // namespace reynard::evaluation
