// Positive attention mass of models made by hand: one that knows its document, one that looks
// everywhere alike, one that sees what is near.

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/tensor/check.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace reynard::evaluation {
namespace {

constexpr int64_t kDocuments = 12;
constexpr int64_t kSize = 60;  // tokens of a document

// Every document is one token over and over.
Corpus one_token_documents() {
  std::vector<int64_t> tokens;
  std::vector<int64_t> ends;
  for (int64_t d = 0; d < kDocuments; ++d) {
    tokens.insert(tokens.end(), kSize, 10 + d);
    ends.push_back(static_cast<int64_t>(tokens.size()));
  }
  Corpus corpus = test::corpus_of(std::move(tokens), ends);
  corpus.bos = 1;
  return corpus;
}

enum class Kind { kOracle, kConstant, kNear, kNearInItsContext };

// Layers of two heads: the first is of the layer's kind, the second looks everywhere alike.
class AttentionStub final : public Scorer {
 public:
  explicit AttentionStub(std::vector<Kind> layers) : layers_(std::move(layers)) {}
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      Probed probed;
      for (const Kind kind : layers_) {
        probed.layers.push_back(
            view_of(kind, std::get<Probe>(request.query).tokens, request.about.at("queries")));
      }
      responses.emplace_back(std::move(probed));
    }
    return responses;
  }

 private:
  static models::AttentionView view_of(Kind kind,
                                       const std::vector<int64_t>& tokens,
                                       int64_t queries) {
    const auto N = static_cast<int64_t>(tokens.size());
    models::AttentionView view;
    view.q = at::zeros({N, 2, 32});
    view.k = at::zeros({N, 2, 32});
    for (int64_t i = 0; i < N && kind == Kind::kOracle; ++i) {
      view.q[i][0][tokens[i]] = 300;  // far above any other
      view.k[i][0][tokens[i]] = 1;
    }
    view.log_gate = at::zeros({N, 2});
    if (kind == Kind::kNear || kind == Kind::kNearInItsContext) {
      view.log_gate.select(1, 0).fill_(-0.5);
    }
    if (kind == Kind::kNearInItsContext) view.first_decayed = at::full({N}, queries, at::kInt);
    return view;
  }

  std::vector<Kind> layers_;
};

EvaluationConfig config_of(OwnPlace place) {
  EvaluationConfig config;
  config.attention_mass = {.contexts = {1, 3, 8}, .length = 20, .samples = 6, .place = place};
  return config;
}

nlohmann::json measure(const std::vector<Kind>& layers,
                       OwnPlace place,
                       const ModelFacts& facts = {}) {
  const test::TempDir folder;
  const Corpus corpus = one_token_documents();
  AttentionStub stub(layers);
  const auto task = task_named("attention_mass").make(corpus, config_of(place), facts);
  return evaluate(stub, *task, {.folder = folder.path()});
}
nlohmann::json measure(Kind kind, OwnPlace place = OwnPlace::kRandom) {
  return measure(std::vector{kind}, place);
}

double mass_of_first_head(const nlohmann::json& summary, int point) {
  return summary.at("series").at("points")[point].at("mass")[0][0].get<double>();
}

TEST(AttentionMassTask, AModelThatKnowsItsDocumentHasAllOfIt) {
  const auto summary = measure(Kind::kOracle);
  for (int point = 0; point < 3; ++point) {
    EXPECT_NEAR(mass_of_first_head(summary, point), 1, 1e-6);
  }
  // The other head does not know: the mean is half way, the best is the oracle.
  EXPECT_NEAR(summary.at("metrics").at("mass_8_contexts").get<double>(), (1 + 1.0 / 8) / 2, 1e-6);
  EXPECT_NEAR(summary.at("metrics").at("best_head_8_contexts").get<double>(), 1, 1e-6);
}

TEST(AttentionMassTask, EvenAttentionGivesOneOverTheNumberOfDocuments) {
  const auto summary = measure(Kind::kConstant);
  const auto& points = summary.at("series").at("points");
  ASSERT_EQ(points.size(), 3);
  for (int point = 0; point < 3; ++point) {
    const double chance = points[point].at("chance").get<double>();
    EXPECT_NEAR(mass_of_first_head(summary, point), chance, 1e-6);
  }
  EXPECT_EQ(points[2].at("contexts"), 8);
  // 8 x 20 tokens of contexts among those and 9 BOS and, on average, half of the 20 queries.
  EXPECT_NEAR(points[2].at("context_share")[0][0].get<double>(), 160.0 / (160 + 9 + 10.5), 2e-3);
}

// Far contexts have weights of e^-80 and less: shares are formed from logarithms.
TEST(AttentionMassTask, AHeadThatForgetsSeesTheNearestOnly) {
  EXPECT_NEAR(mass_of_first_head(measure(Kind::kNear, OwnPlace::kLast), 2), 1, 1e-3);
  EXPECT_NEAR(mass_of_first_head(measure(Kind::kNear, OwnPlace::kFirst), 2), 0, 1e-6);
}

// Gates that stop where the local context begins leave what lies in the memory alike.
TEST(AttentionMassTask, AMemoryThatDoesNotDecayIsSeenWhole) {
  EXPECT_NEAR(
      mass_of_first_head(measure(Kind::kNearInItsContext, OwnPlace::kFirst), 2), 1.0 / 8, 1e-6);
}

// The others see a piece of what is near at best.
TEST(AttentionMassTask, OnlyLayersWithAMemoryCountWhereThereAreAny) {
  const std::vector<Kind> layers = {Kind::kNear, Kind::kOracle, Kind::kConstant};
  ModelFacts facts;
  facts.memory_layers = {1};
  const auto summary = measure(layers, OwnPlace::kLast, facts);
  EXPECT_NEAR(summary.at("metrics").at("mass_8_contexts").get<double>(), (1 + 1.0 / 8) / 2, 1e-6);
  const auto& mass = summary.at("series").at("points")[2].at("mass");
  ASSERT_EQ(mass.size(), 3);
  EXPECT_TRUE(mass[0].empty());
  EXPECT_EQ(mass[1].size(), 2);
  EXPECT_TRUE(mass[2].empty());
  EXPECT_EQ(summary.at("settings").at("memory_layers"), facts.memory_layers);
  EXPECT_EQ(summary.at("settings").at("scoring"), 1);
  EXPECT_FALSE(measure(layers, OwnPlace::kLast).at("settings").contains("scoring"));
  EXPECT_EQ(measure(layers, OwnPlace::kLast).at("series").at("points")[2].at("mass")[0].size(), 2);
}

TEST(AttentionMassTask, ContextsAreFromDifferentDocumentsAndTheQueriesGoOnWithOne) {
  const Corpus corpus = one_token_documents();
  const auto task = task_named("attention_mass").make(corpus, config_of(OwnPlace::kRandom), {});
  const Requests requests = task->requests();
  ASSERT_EQ(requests.size, 3 * 6);
  std::set<int64_t> places;
  for (int64_t i = 12; i < 18; ++i) {
    const Request request = requests.at(i);
    const auto& tokens = std::get<Probe>(request.query).tokens;
    EXPECT_EQ(tokens.size(), 9 * 21);  // eight contexts and the queries, each after BOS
    const auto begins = request.about.at("begins").get<std::vector<int64_t>>();
    std::set<int64_t> documents;
    for (const int64_t begin : begins) {
      EXPECT_EQ(tokens[begin - 1], 1);
      documents.insert(tokens[begin]);
    }
    EXPECT_EQ(documents.size(), 8);
    const int64_t own = request.about.at("own");
    places.insert(own);
    EXPECT_EQ(tokens[begins[own]], tokens.back());
    EXPECT_EQ(request.about.at("queries"), 8 * 21 + 1);
    // The same sample at a smaller d is about the same document.
    EXPECT_EQ(std::get<Probe>(requests.at(i - 12).query).tokens.back(), tokens.back());
  }
  EXPECT_GT(places.size(), 1);
}

TEST(AttentionMassTask, AMemoryOfNothingIsAnError) {
  const Corpus corpus = one_token_documents();
  const ModelFacts facts = {.memory_layers = {1}, .memory_capacity = -1};
  try {
    task_named("attention_mass").make(corpus, config_of(OwnPlace::kRandom), facts);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("a memory of 0 tokens"), std::string::npos);
  }
}

TEST(AttentionMassTask, TooFewDocumentsNameTheRemedy) {
  const Corpus corpus = one_token_documents();
  EvaluationConfig config = config_of(OwnPlace::kRandom);
  config.attention_mass.contexts = {13};
  try {
    task_named("attention_mass").make(corpus, config, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the text has 12 documents of 20 tokens or more"),
              std::string::npos);
    EXPECT_NE(std::string(e.what()).find("--attention_mass.contexts"), std::string::npos);
  }
}

}  // namespace
}  // namespace reynard::evaluation
