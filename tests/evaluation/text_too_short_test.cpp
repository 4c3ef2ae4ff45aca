#include "reynard/evaluation/text_too_short.h"

#include "reynard/evaluation/registry.h"
#include "reynard/tensor/error.h"
#include "tests/support/corpus.h"

#include <gtest/gtest.h>

#include <vector>

namespace reynard::evaluation {
namespace {

// `eval` leaves out what a longer text could give; other mistakes end it.
TEST(TextTooShort, IsWhatTasksThatRunByDefaultThrowForAShortText) {
  const Corpus corpus = test::corpus_of(std::vector<int64_t>(20, 5), {20});
  for (const char* task : {"per_position_loss", "forgetting_curve", "inside", "text_sample"}) {
    EXPECT_THROW(task_named(task).make(corpus, {}, {}), TextTooShort) << task;
  }
  EXPECT_THROW(task_named("pruning").make(corpus, {}, {.forgets = true}), TextTooShort);
  // As long as the model was trained with, which is less than the maps have cells.
  EXPECT_THROW(task_named("inside").make(corpus, {}, {.train_length = 8}), TextTooShort);
  EvaluationConfig config;
  config.forgetting_curve.length = 4;
  config.forgetting_curve.prefixes = {"other"};
  Corpus with_other = corpus;
  with_other.others = {test::corpus_of({5, 5, 5}, {3})};
  with_other.others[0].name = "other";
  EXPECT_THROW(task_named("forgetting_curve").make(with_other, config, {}), TextTooShort);
  config.forgetting_curve.length = 1;
  try {
    task_named("forgetting_curve").make(corpus, config, {});
    FAIL();
  } catch (const TextTooShort&) {
    FAIL() << "no text helps";
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace reynard::evaluation
