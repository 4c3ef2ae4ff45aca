// Perplexity: which tokens are read and scored, and what the losses become.

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/tensor/check.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>

namespace reynard::evaluation {
namespace {

Corpus corpus_of_documents() {
  std::vector<int64_t> ids(400);
  std::iota(ids.begin(), ids.end(), 0);
  Corpus corpus = test::corpus_of(std::move(ids), {100, 200, 300, 390, 400});
  corpus.bos = 1000;
  corpus.eos = 1001;
  return corpus;
}

EvaluationConfig perplexity_config() {
  EvaluationConfig config;
  config.perplexity.window = 40;
  config.perplexity.stride = 10;
  config.perplexity.length = 50;
  config.perplexity.documents = {8, 1, 2, 4};
  config.perplexity.streams = 3;
  return config;
}

TEST(PerplexityTask, EveryTokenIsScoredOnceInEitherKindOfWindow) {
  const Corpus corpus = corpus_of_documents();
  const auto task = task_named("perplexity").make(corpus, perplexity_config(), {});
  const Requests requests = task->requests();
  std::map<std::string, std::vector<int64_t>> scored;
  for (int64_t i = 0; i < requests.size; ++i) {
    const Request request = requests.at(i);
    const auto& score = std::get<Score>(request.query);
    const std::string kind = request.about.at("kind");
    EXPECT_EQ(score.context.front(), 1000);
    if (kind == "documents") continue;
    auto& all = scored[kind];
    all.insert(all.end(), score.continuation.begin(), score.continuation.end());
    EXPECT_LE(score.context.size() + score.continuation.size(), 41);
    // Connected text: the context ends where the scored tokens begin.
    if (score.context.size() > 1) {
      EXPECT_EQ(score.context.back() + 1, score.continuation.front());
    }
    if (kind == "strided" && score.context.size() > 1) {
      EXPECT_LE(score.continuation.size(), 10);
    }
  }
  std::vector<int64_t> every(400);
  std::iota(every.begin(), every.end(), 0);
  EXPECT_EQ(scored.at("windowed"), every);
  EXPECT_EQ(scored.at("strided"), every);
}

TEST(PerplexityTask, FirstWindowsAreScoredWholeUpToTheTokensAskedFor) {
  const Corpus corpus = corpus_of_documents();
  EvaluationConfig config = perplexity_config();
  config.perplexity.tokens = 160;  // of the second document, too
  const auto task = task_named("perplexity").make(corpus, config, {});
  const Requests requests = task->requests();
  std::map<std::string, std::vector<size_t>> sizes;
  for (int64_t i = 0; i < requests.size; ++i) {
    const Request request = requests.at(i);
    sizes[request.about.at("kind")].push_back(std::get<Score>(request.query).continuation.size());
  }
  EXPECT_EQ(sizes["windowed"], (std::vector<size_t>{40, 40, 20, 40, 20}));
  EXPECT_EQ(sizes["strided"], (std::vector<size_t>{40, 10, 10, 10, 10, 10, 10, 40, 10, 10}));
}

// More streams than documents would measure the same ones again.
TEST(PerplexityTask, EachStreamEndsWithADocumentOfItsOwn) {
  const Corpus corpus = corpus_of_documents();
  EvaluationConfig config = perplexity_config();
  config.perplexity.documents = {1};
  config.perplexity.streams = 10;
  const auto task = task_named("perplexity").make(corpus, config, {});
  EXPECT_EQ(task->settings().at("streams"), 4);
  const Requests requests = task->requests();
  int64_t streams = 0;
  for (int64_t i = 0; i < requests.size; ++i) {
    streams += requests.at(i).about.at("kind") == "documents" ? 1 : 0;
  }
  EXPECT_EQ(streams, 4);
}

TEST(PerplexityTask, NoStreamsWhereNoneAreAskedFor) {
  const Corpus corpus = corpus_of_documents();
  EvaluationConfig config = perplexity_config();
  config.perplexity.documents = {};
  const auto task = task_named("perplexity").make(corpus, config, {});
  EXPECT_EQ(task->settings().at("documents"), std::vector<int64_t>());
  const Requests requests = task->requests();
  for (int64_t i = 0; i < requests.size; ++i) {
    EXPECT_NE(requests.at(i).about.at("kind"), "documents");
  }
}

TEST(PerplexityTask, StreamsPutOtherDocumentsBeforeTheSameLastOne) {
  const Corpus corpus = corpus_of_documents();
  const auto task = task_named("perplexity").make(corpus, perplexity_config(), {});
  // Four documents have 50 tokens: streams of eight are left out.
  EXPECT_EQ(task->settings().at("documents"), (std::vector<int64_t>{1, 2, 4}));
  const Requests requests = task->requests();
  std::map<int64_t, std::map<int64_t, Request>> streams;
  for (int64_t i = 0; i < requests.size; ++i) {
    Request request = requests.at(i);
    if (request.about.at("kind") != "documents") continue;
    streams[request.about.at("documents")][request.about.at("stream")] = request;
  }
  ASSERT_EQ(streams.size(), 3);
  for (int64_t stream = 0; stream < 3; ++stream) {
    const auto& alone = std::get<Score>(streams[1][stream].query);
    const auto& among = std::get<Score>(streams[4][stream].query);
    EXPECT_EQ(alone.continuation, among.continuation);
    EXPECT_EQ(alone.context, std::vector<int64_t>{1000});
    EXPECT_EQ(among.context.size(), 3 * 52 + 1);  // [bos] 50 tokens [eos], three times, and [bos]
    EXPECT_EQ(std::count(among.context.begin(), among.context.end(), alone.continuation[0]), 0);
  }
}

// Loss 1 / (tokens before).
class Fading final : public Scorer {
 public:
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      const auto& score = std::get<Score>(request.query);
      Scored scored;
      for (size_t i = 0; i < score.continuation.size(); ++i) {
        scored.logprobs.push_back(-1.0F / static_cast<float>(score.context.size() + i));
        scored.hits.push_back(0);
      }
      responses.emplace_back(std::move(scored));
    }
    return responses;
  }
};

TEST(PerplexityTask, IsTheExponentialOfTheMeanLoss) {
  const test::TempDir folder;
  const Corpus corpus = corpus_of_documents();
  Fading scorer;
  const auto summary = evaluate(scorer,
                                *task_named("perplexity").make(corpus, perplexity_config(), {}),
                                {.folder = folder.path()});
  double loss = 0;
  for (int i = 1; i <= 50; ++i) loss += 1.0 / i;
  const auto& metrics = summary.at("metrics");
  EXPECT_NEAR(metrics.at("perplexity_1_documents").get<double>(), std::exp(loss / 50), 1e-6);
  EXPECT_LT(metrics.at("perplexity_4_documents").get<double>(), std::exp(loss / 50));
  // Overlap leaves fewer tokens without context.
  EXPECT_LT(metrics.at("strided_perplexity").get<double>(),
            metrics.at("windowed_perplexity").get<double>());
  EXPECT_EQ(metrics.at("strided_tokens"), 400);
  EXPECT_EQ(summary.at("series").at("documents").size(), 3);
  EXPECT_EQ(metrics.at("documents_left_out").at("documents"), std::vector<int64_t>{8});
  EXPECT_EQ(metrics.at("documents_left_out").at("text"),
            "8: of documents with 50 tokens or more (perplexity.length) the text has 4");
}

TEST(PerplexityTask, StrideLongerThanTheWindowIsRefused) {
  const Corpus corpus = corpus_of_documents();
  EvaluationConfig config = perplexity_config();
  config.perplexity.stride = 41;
  EXPECT_THROW(task_named("perplexity").make(corpus, config, {}), Error);
}

}  // namespace
}  // namespace reynard::evaluation
