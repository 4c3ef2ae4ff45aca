// Tasks that give a prompt and judge what is written, on stub models: one that knows every answer
// scores 1, one that always says the same scores near chance.

#include "reynard/evaluation/prompt_task.h"

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/writer.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

namespace reynard::evaluation {
namespace {

Writer oracle() {
  return Writer([](const Request& request) {
    std::string all;
    for (const auto& answer : request.about.at("answers")) all += " " + answer.get<std::string>();
    return all + ".";
  });
}

Writer parrot(std::string text) {
  return Writer([text = std::move(text)](const Request&) { return text; });
}

// English-like text: sentences of lower-case words.
Corpus text_corpus(int64_t size = 20000) {
  static const std::vector<std::string> kWords = {
      "river", "stone", "walks", "under", "cloud", "seven", "green", "horse", "quiet", "paper"};
  static const std::vector<std::string> kEndings = {"", "s", "ing", "ed", "ly", "er", "est"};
  std::vector<int64_t> tokens;
  uint64_t state = 1;
  int64_t words = 0;
  while (static_cast<int64_t>(tokens.size()) < size) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    std::string word = kWords[(state >> 33) % kWords.size()];
    word += kEndings[(state >> 40) % kEndings.size()];
    word += ++words % 12 == 0 ? ". " : " ";
    for (const char c : word) tokens.push_back(static_cast<unsigned char>(c));
  }
  tokens.resize(size);
  Corpus corpus = test::corpus_of(std::move(tokens), {size / 2, size});
  corpus.bos = 256;
  corpus.eos = 257;
  return corpus;
}

EvaluationConfig prompt_config() {
  EvaluationConfig config;
  config.needle.longest = 2000;
  config.needle.lengths = 3;
  config.needle.depths = 3;
  config.needle.trials = 2;
  config.passkey.lengths = {600, 1200};
  config.passkey.trials = 5;
  config.ruler.lengths = {8000};
  config.ruler.samples = 2;
  config.babilong.lengths = {3000, 5000};
  config.babilong.samples = 3;
  return config;
}

nlohmann::json run(const std::string& task, Scorer& scorer, const EvaluationConfig& config) {
  const test::TempDir folder;
  const Corpus corpus = text_corpus();
  return evaluate(scorer, *task_named(task).make(corpus, config, {}), {.folder = folder.path()});
}

std::string text_of(const Corpus& corpus, const Request& request) {
  return corpus.decode(std::get<Generate>(request.query).prompt);
}

class PromptTasks : public testing::TestWithParam<const char*> {};

TEST_P(PromptTasks, OracleScoresOneAndAConstantAnswerNearChance) {
  Writer knows = oracle();
  const auto right = run(GetParam(), knows, prompt_config());
  EXPECT_EQ(right.at("metrics").at("score"), 1.0);
  EXPECT_EQ(right.at("metrics").at("samples"), knows.answered);
  Writer constant = parrot(" 12345 and the of");
  EXPECT_LT(run(GetParam(), constant, prompt_config()).at("metrics").at("score").get<double>(),
            0.2);
}

TEST_P(PromptTasks, PromptsFitTheirLengthAndAreTheSameForTheSameSeed) {
  const Corpus corpus = text_corpus();
  const auto first = task_named(GetParam()).make(corpus, prompt_config(), {});
  const auto second = task_named(GetParam()).make(corpus, prompt_config(), {});
  const Requests requests = first->requests();
  const Requests again = second->requests();
  ASSERT_EQ(requests.size, again.size);
  std::set<std::string> ids;
  for (int64_t i = 0; i < requests.size; ++i) {
    const Request request = requests.at(i);
    ids.insert(request.id);
    const auto& query = std::get<Generate>(request.query);
    EXPECT_EQ(query.prompt, std::get<Generate>(again.at(i).query).prompt);
    EXPECT_EQ(query.prompt.front(), 256);
    EXPECT_LE(static_cast<int64_t>(query.prompt.size()), request.about.at("length").get<int64_t>());
  }
  EXPECT_EQ(static_cast<int64_t>(ids.size()), requests.size);
}

TEST_P(PromptTasks, GoesOnAfterItWasCutShort) {
  const test::TempDir folder;
  const Corpus corpus = text_corpus();
  int64_t patience = 4;
  Writer cut([&](const Request&) {
    if (--patience < 0) throw Error("out of patience");
    return std::string("x");
  });
  const EvaluateOptions options{.folder = folder.path(), .batch_tokens = 1};
  EXPECT_THROW(evaluate(cut, *task_named(GetParam()).make(corpus, prompt_config(), {}), options),
               Error);
  Writer rest = parrot("x");
  const auto summary =
      evaluate(rest, *task_named(GetParam()).make(corpus, prompt_config(), {}), options);
  EXPECT_EQ(summary.at("metrics").at("samples").get<int64_t>(), rest.answered + 4);
}

INSTANTIATE_TEST_SUITE_P(All,
                         PromptTasks,
                         testing::Values("needle", "passkey", "ruler", "babilong"));

TEST(Needle, IsInsertedBehindASentenceAtItsDepth) {
  const Corpus corpus = text_corpus();
  const auto task = task_named("needle").make(corpus, prompt_config(), {});
  const Requests requests = task->requests();
  for (int64_t i = 0; i < requests.size; ++i) {
    const Request request = requests.at(i);
    const std::string text = text_of(corpus, request);
    const size_t needle = text.find("\nThe best thing to do in San Francisco is eat");
    ASSERT_NE(needle, std::string::npos);
    const int64_t depth = request.about.at("depth");
    const auto end = static_cast<double>(text.find("\n\nThere is an important piece") - 93);
    // At most a sentence of some 80 characters left of the depth.
    EXPECT_LE(static_cast<double>(needle), end * static_cast<double>(depth) / 100 + 1);
    EXPECT_GE(static_cast<double>(needle), end * static_cast<double>(depth) / 100 - 100);
    if (needle > 0 && depth < 100) {
      EXPECT_EQ(text[needle - 1], '.');
    }
    if (depth == 100) {  // the end, whatever stands before it
      EXPECT_NE(text.find("a sunny day.\n\n\nThere is an important piece"), std::string::npos);
    }
    EXPECT_TRUE(text.ends_with("Answer: The best thing to do in San Francisco is"));
  }
}

TEST(Needle, EasyModeAsksBeforeItTells) {
  EvaluationConfig config = prompt_config();
  config.needle.mode = NeedleMode::kEasy;
  const Corpus corpus = text_corpus();
  const auto task = task_named("needle").make(corpus, config, {});
  EXPECT_NE(text_of(corpus, task->requests().at(0))
                .find("\nWhat is the best thing to do in San Francisco? Answer: The best thing to "
                      "do in San Francisco is eat a sandwich"),
            std::string::npos);
}

// As the published script has it.
TEST(Needle, TheHaystackIsTheSameWhereThatIsAskedFor) {
  EvaluationConfig config = prompt_config();
  const Corpus corpus = text_corpus();
  const auto begins = [&] {
    std::set<int64_t> begins;
    const auto task = task_named("needle").make(corpus, config, {});
    const Requests requests = task->requests();
    for (int64_t i = 0; i < requests.size; ++i)
      begins.insert(requests.at(i).about.at("begin").get<int64_t>());
    return begins;
  };
  EXPECT_GT(begins().size(), 1U);
  config.needle.same_haystack = true;
  EXPECT_EQ(begins(), std::set<int64_t>{0});
}

TEST(Needle, OnlyTheFirstLineOfTheAnswerCounts) {
  Writer late = parrot(" nothing\nEat a sandwich and sit in Dolores Park on a sunny day");
  EXPECT_EQ(run("needle", late, prompt_config()).at("metrics").at("score"), 0.0);
  Writer loud = parrot("\nEAT a sandwich and sit in Dolores Park on a sunny day, they say\nmore");
  EXPECT_EQ(run("needle", loud, prompt_config()).at("metrics").at("score"), 1.0);
}

TEST(Needle, PublishedGridFollowsFromItsLongestLength) {
  EvaluationConfig config;
  config.needle.longest = 32000;
  const Corpus corpus = text_corpus();
  const auto settings = task_named("needle").make(corpus, config, {})->settings();
  EXPECT_EQ(settings.at("lengths"),
            (std::vector<int64_t>{
                1000, 4100, 7200, 10300, 13400, 16500, 19600, 22700, 25800, 28900, 32000}));
  EXPECT_EQ(settings.at("depths").size(), 11);
}

TEST(Passkey, PromptIsThePublishedOne) {
  const Corpus corpus = text_corpus();
  const auto task = task_named("passkey").make(corpus, prompt_config(), {});
  const Request request = task->requests().at(0);
  const std::string key = request.about.at("answers")[0];
  const std::string text = text_of(corpus, request);
  EXPECT_TRUE(text.starts_with(
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
      "them. I will quiz you about the important information there.\n"))
      << text;
  EXPECT_NE(text.find("\nThe pass key is " + key + ". Remember it. " + key + " is the pass key.\n"),
            std::string::npos);
  EXPECT_TRUE(text.ends_with("\nWhat is the pass key? The pass key is"));
  // As long as fits.
  EXPECT_GT(std::get<Generate>(request.query).prompt.size(), 600 - 32);
}

TEST(Passkey, FirstNumberOfTheAnswerCounts) {
  Writer first([](const Request& r) {
    return "no. " + r.about.at("answers")[0].get<std::string>() + "9 or";
  });
  EXPECT_EQ(run("passkey", first, prompt_config()).at("metrics").at("score"), 0.0);
  Writer exact(
      [](const Request& r) { return " :" + r.about.at("answers")[0].get<std::string>() + " 7"; });
  EXPECT_EQ(run("passkey", exact, prompt_config()).at("metrics").at("score"), 1.0);
}

TEST(Passkey, LengthsThatHoldNoPromptAreRefused) {
  EvaluationConfig config = prompt_config();
  config.passkey.lengths = {100};
  const Corpus corpus = text_corpus();
  try {
    task_named("passkey").make(corpus, config, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("passkey: --passkey.lengths = 100; expected >= "),
              std::string::npos)
        << e.what();
  }
}

// Other text fills the length, however short its sentences are.
TEST(Babilong, PromptsHaveTheirLength) {
  std::vector<int64_t> tokens;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = i % 3 == 0 ? "Yes. " : "The river walks under the stone. ";
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }
  const auto size = static_cast<int64_t>(tokens.size());
  Corpus corpus = test::corpus_of(std::move(tokens), {size});
  EvaluationConfig config;
  config.babilong.lengths = {3000, 6000};
  config.babilong.samples = 5;
  const auto task = task_named("babilong").make(corpus, config, {});
  const Requests requests = task->requests();
  for (int64_t i = 0; i < requests.size; ++i) {
    const Request request = requests.at(i);
    const auto prompt = static_cast<int64_t>(std::get<Generate>(request.query).prompt.size());
    const int64_t length = request.about.at("length");
    EXPECT_LE(prompt, length);
    EXPECT_GT(prompt, length - 40) << request.id;
    EXPECT_EQ(text_of(corpus, request).find(" Yes. "), std::string::npos) << "a short sentence";
  }
}

// A prompt has at most a fact per eight tokens, as published.
TEST(Babilong, StoriesThatAreTooLongForALengthNameTheRemedy) {
  const test::TempDir folder;
  std::string story;
  for (int i = 1; i <= 60; ++i) story += std::to_string(i) + " Mary went to the office.\n";
  test::write_file(folder / "qa1_test.txt", story + "61 Where is Mary? \toffice\t60\n");
  const Corpus corpus = text_corpus();
  EvaluationConfig config;
  config.babilong.tasks = {"qa1"};
  config.babilong.lengths = {2100};
  config.babilong.facts = folder.path().string();
  const auto task = task_named("babilong").make(corpus, config, {});
  const std::string message = test::error_of([&] { task->requests().at(0); });
  EXPECT_SAYS(message, "babilong: no story of qa1 has at most ");
  EXPECT_SAYS(message, " facts; give longer --babilong.lengths");
}

// Of the largest, no sum or product is within int64.
TEST(Babilong, AnySeedIsOne) {
  const Corpus corpus = text_corpus();
  std::set<std::string> prompts;
  for (const int64_t seed : {int64_t{0}, INT64_MAX / 31, INT64_MAX}) {
    EvaluationConfig config = prompt_config();
    config.babilong.seed = seed;
    const auto task = task_named("babilong").make(corpus, config, {});
    const Requests requests = task->requests();
    prompts.insert(text_of(corpus, requests.at(requests.size - 1)));
  }
  EXPECT_EQ(prompts.size(), 3U);
}

TEST(Babilong, ATaskNamedTwiceCountsOnce) {
  const Corpus corpus = test::corpus_of(std::vector<int64_t>(100, '.'), {100});
  EvaluationConfig config;
  config.babilong.tasks = {"qa2", "qa1", "qa2"};
  config.babilong.lengths = {3000};
  config.babilong.samples = 5;
  const auto task = task_named("babilong").make(corpus, config, {});
  EXPECT_EQ(task->settings().at("tasks"), (nlohmann::json{"qa2", "qa1"}));
  EXPECT_EQ(task->requests().size, 2 * 5);
}

// Stories of qa5 are others since people move to other places and give to those who are there;
// those of the other tasks are not.
TEST(Babilong, StoriesOfGiftsAreThoseOfAThirdWay) {
  const Corpus corpus = text_corpus();
  EvaluationConfig config = prompt_config();
  EXPECT_EQ(task_named("babilong").make(corpus, config, {})->settings().at("scoring"), 2);
  config.babilong.tasks = {"qa1", "qa4"};
  EXPECT_FALSE(task_named("babilong").make(corpus, config, {})->settings().contains("scoring"));
}

TEST(PromptTask, TextIsFoldedByCharacter) {
  EXPECT_EQ(lower_case("\u00c9CO \u0394x \u4e2d"), "\u00e9co \u03b4x \u4e2d");
  EXPECT_TRUE(contains_folded("in \u00c9VREUX.", "\u00c9vreux"));
}

TEST(PromptTask, DefaultLengthsHoldThePrompt) {
  const auto at_least = [](int64_t least) {
    return [=](int64_t length) { return length >= least; };
  };
  EXPECT_EQ(test_lengths({}, 100, at_least(60)), (std::vector<int64_t>{100, 200, 400}));
  EXPECT_EQ(test_lengths({}, 100, at_least(1000)), std::vector<int64_t>{400});
  EXPECT_EQ(test_lengths({}, 100), (std::vector<int64_t>{25, 50, 100, 200, 400}));
  EXPECT_EQ(test_lengths({7, 3}, 100, at_least(60)), (std::vector<int64_t>{3, 7}));
  // Prompts of some lengths are of another kind.
  const auto but_some = [](int64_t length) { return length < 60 || length > 200; };
  EXPECT_EQ(test_lengths({}, 100, but_some), (std::vector<int64_t>{25, 50, 400}));
}

TEST(Haystack, GoesRoundOverDocumentsWithoutTheirEnds) {
  Corpus corpus = test::corpus_of({0, 1, 2, 3, 4, 5, 6, 7}, {4, 8});
  corpus.documents = {{1, 3}, {5, 8}};
  const Haystack haystack(corpus, "needle");
  EXPECT_EQ(haystack.num_tokens(), 5);
  EXPECT_EQ(haystack.read(1, 7), (std::vector<int64_t>{2, 5, 6, 7, 1, 2, 5}));
  corpus.documents.clear();
  EXPECT_THROW(Haystack(corpus, "needle"), Error);
}

TEST(PromptTask, SamplesOfAnotherSeedAreNotThoseOfTheNext) {
  EXPECT_EQ(sample_random(0, 1).next(), sample_random(0, 1).next());
  EXPECT_NE(sample_random(1, 0).next(), sample_random(0, 1).next());
}

TEST(PromptTask, AveragesByGroup) {
  Samples samples{4, [](const auto& visit) {
                    for (const int i : {0, 1, 2, 3}) {
                      visit({{"length", i % 2}, {"score", i < 3 ? 1.0 : 0.0}});
                    }
                  }};
  const Measured measured = average_scores(samples, {"length"});
  EXPECT_EQ(measured.metrics.at("score"), 0.75);
  ASSERT_EQ(measured.series.at("groups").size(), 2);
  EXPECT_EQ(measured.series.at("groups")[0].at("score"), 1.0);
  EXPECT_EQ(measured.series.at("groups")[1].at("score"), 0.5);
  EXPECT_EQ(measured.series.at("groups")[1].at("standard_error"), 0.5);
}

// One sample says nothing of its error.
TEST(PromptTask, OneSampleHasNoStandardError) {
  const Samples samples{1, [](const auto& visit) { visit({{"length", 8}, {"score", 1.0}}); }};
  const Measured measured = average_scores(samples, {"length"});
  EXPECT_TRUE(measured.metrics.at("standard_error").is_null());
  EXPECT_TRUE(measured.series.at("groups")[0].at("standard_error").is_null());
}

}  // namespace
}  // namespace reynard::evaluation
