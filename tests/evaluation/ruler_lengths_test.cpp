// RULER at short lengths: no prompt is longer than its length, none asks for what it does not hold,
// and an error names a length that is long enough.

#include "reynard/evaluation/evaluation_config.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/ruler.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

// Words of 3 to 12 letters, so that prompts of one size have many lengths.
class RulerLengths : public testing::Test {
 protected:
  RulerLengths() : corpus_(test::corpus_of(std::vector<int64_t>(100, 'a'), {100})) {
    std::string words;
    for (int i = 0; i < 200; ++i) {
      words += std::string(1 + i % 10, 'w') + static_cast<char>('a' + i / 26) +
               static_cast<char>('a' + i % 26) + "\n";
    }
    config_.ruler.words = (folder_ / "words.txt").string();
    test::write_file(config_.ruler.words, words);
    // The first question has the shortest document.
    std::string articles;
    for (int i = 0; i < 20; ++i) {
      articles += std::string(i ? "," : "") + R"({"paragraphs":[{"context":"C)" +
                  std::to_string(i) + std::string(40 * (i * 7 % 20), 'c') +
                  R"(","qas":[{"question":"Q","answers":[{"text":"A"}]}]}]})";
    }
    config_.ruler.squad = (folder_ / "squad.json").string();
    test::write_file(config_.ruler.squad, "{\"data\":[" + articles + "]}");
    config_.ruler.samples = 30;
  }
  std::unique_ptr<Task> ruler(const char* task, int64_t length) {
    config_.ruler.tasks = {task};
    config_.ruler.lengths = {length};
    return task_named("ruler").make(corpus_, config_, {});
  }
  // The length that the error for a short one names.
  int64_t least_length(const char* task, int64_t length = 8) {
    const std::string error = test::error_of([&] { ruler(task, length); });
    const size_t at = error.find("expected >= ");
    EXPECT_NE(at, std::string::npos) << error;
    EXPECT_SAYS(error, std::string("prompt and answer of ") + task + " alone");
    return at == std::string::npos ? 8192 : std::stoll(error.substr(at + 12));
  }
  test::TempDir folder_;
  Corpus corpus_;
  EvaluationConfig config_;
};

TEST_F(RulerLengths, TheLeastLengthOfTheErrorHoldsAllSamples) {
  for (const RulerTask& task : ruler_tasks()) {
    if (task.name == "qa_2") continue;  // has no file here
    const int64_t least = least_length(task.name.data());
    for (const int64_t length : {least, least + 100}) {
      const auto made = ruler(task.name.data(), length);
      const Requests requests = made->requests();
      ASSERT_EQ(requests.size, 30);
      for (int64_t i = 0; i < requests.size; ++i) {
        const auto query = std::get<Generate>(requests.at(i).query);
        EXPECT_LE(std::ssize(query.prompt) + query.max_tokens, length)
            << task.name << " at " << length << ", sample " << i;
      }
    }
  }
}

// Also where the first sample fits.
TEST_F(RulerLengths, EverySampleMustFit) {
  const int64_t least = least_length("qa_1");
  EXPECT_EQ(least_length("qa_1", least - 40), least);
  config_.ruler.samples = 1;
  EXPECT_LT(least_length("qa_1"), least - 40);
}

TEST_F(RulerLengths, ByDefaultOnlyLengthsThatHoldAllSamplesAreTested) {
  const int64_t least = least_length("qa_1");
  config_.ruler.lengths = {};
  const auto lengths = [&](int64_t trained) -> nlohmann::json {
    const auto task = task_named("ruler").make(corpus_, config_, {.train_length = trained});
    return task->settings().at("lengths");
  };
  EXPECT_EQ(lengths(4 * (least - 40)).size(), 4U);
  EXPECT_EQ(lengths(4 * (least + 40)).size(), 5U);
  // From 4096 tokens on cwe has longer lists, which 6000 bytes do not hold.
  config_.ruler.tasks = {"cwe"};
  EXPECT_EQ(lengths(3000), (nlohmann::json{3000, 12000}));
}

// Words of the list in a prompt of cwe or fwe, without their numbers and the dots.
std::map<std::string, int> listed(const std::string& prompt) {
  const size_t end = prompt.rfind("\nQuestion:");
  size_t begin = prompt.rfind(" most often.\n", end);
  if (begin == std::string::npos) begin = prompt.rfind(" coded words. ", end);
  std::map<std::string, int> times;
  std::istringstream in(prompt.substr(begin + 14, end - begin - 14));
  for (std::string word; in >> word;) {
    if (!word.ends_with('.')) ++times[word];
  }
  return times;
}

// Each answer occurs, and more often than any other word.
testing::AssertionResult are_most_frequent(const std::vector<std::string>& answers,
                                           const std::string& prompt) {
  std::map<std::string, int> others = listed(prompt);
  int rarest = std::numeric_limits<int>::max();
  for (const std::string& answer : answers) {
    rarest = std::min(rarest, others[answer]);
    others.erase(answer);
  }
  for (const auto& [word, times] : others) {
    if (times >= rarest) {
      return testing::AssertionFailure() << word << " occurs " << times << " times, an answer "
                                         << rarest << " times, of " << others.size() << " others";
    }
  }
  if (rarest == 0) return testing::AssertionFailure() << "an answer does not occur";
  return testing::AssertionSuccess();
}

// At the least length too.
TEST_F(RulerLengths, TheWordsThatAreAskedForAreTheMostFrequent) {
  for (const char* task : {"cwe", "fwe"}) {
    const auto made = ruler(task, least_length(task));
    const Requests requests = made->requests();
    for (int64_t i = 0; i < requests.size; ++i) {
      const Request request = requests.at(i);
      const auto answers = request.about.at("answers").get<std::vector<std::string>>();
      const std::string prompt = corpus_.decode(std::get<Generate>(request.query).prompt);
      EXPECT_TRUE(are_most_frequent(answers, prompt)) << task << " " << i;
      EXPECT_EQ(answers.size(), std::string(task) == "cwe" ? 10U : 3U);
      EXPECT_GT(listed(prompt).size(), answers.size());
    }
  }
}

// Word r occurs floor(N r^-2 / zeta(2)) times: of 42 words the fourth as often as the fifth.
TEST_F(RulerLengths, FrequentWordsOccurMoreOftenThanTheNextFromTheLeastSizeOn) {
  const RulerTask& task = ruler_task_named("fwe");
  for (int64_t size = task.least; size < 400; ++size) {
    PythonRandom random(1);
    const RulerSample made = task.make({}, random, size, 1000, 0);
    EXPECT_TRUE(are_most_frequent(made.answers, made.text)) << size;
  }
  PythonRandom random(1);
  const RulerSample small = task.make({}, random, task.least - 1, 1000, 0);
  EXPECT_FALSE(are_most_frequent(small.answers, small.text));
}

}  // namespace
}  // namespace reynard::evaluation
