// What a look inside refuses to show, and what its settings say.

#include "reynard/evaluation/registry.h"
#include "reynard/tensor/error.h"
#include "tests/support/corpus.h"

#include <gtest/gtest.h>

#include <vector>

namespace reynard::evaluation {
namespace {

Corpus one_document() {
  return test::corpus_of(std::vector<int64_t>(1500, 5), {1500});
}

// Keys of a memory were shown as those of the local context, then all where the best are read.
TEST(Inside, CountsTheWaysOfShowingAMemory) {
  const Corpus corpus = one_document();
  const auto settings = [&](const ModelFacts& facts) {
    return task_named("inside").make(corpus, {}, facts)->settings();
  };
  EXPECT_EQ(settings({.memory_layers = {1}}).at("scoring"), 2);
  EXPECT_FALSE(settings({}).contains("scoring"));
}

TEST(Inside, RejectsWhatItCannotShow) {
  const Corpus corpus = one_document();
  EvaluationConfig config;
  config.inside.length = 100;
  EXPECT_THROW(task_named("inside").make(corpus, config, {}), Error);
  config.inside.length = 128;
  config.inside.document = 1;
  EXPECT_THROW(task_named("inside").make(corpus, config, {}), Error);
}

}  // namespace
}  // namespace reynard::evaluation
