// Files of questions that a user gives: a malformed entry is an error that names its place, or is
// left out and counted.

#include "reynard/evaluation/babilong.h"
#include "reynard/evaluation/few_shot_items.h"
#include "reynard/evaluation/ruler.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <string>

namespace reynard::evaluation {
namespace {

// A file of the name with the text.
class DataFiles : public testing::Test {
 protected:
  std::filesystem::path file(const char* name, const std::string& text) const {
    test::write_file(folder_ / name, text);
    return folder_ / name;
  }
  test::TempDir folder_;
};

// Any answer contains an empty one.
TEST_F(DataFiles, EmptyAnswersAreMalformed) {
  const auto squad = file("squad.json",
                          R"({"data":[{"paragraphs":[{"context":"C1","qas":[
      {"question":"Q1","answers":[{"text":"A"},{"text":""}]}]}]},
      {"paragraphs":[{"context":"C2","qas":[{"question":"Q2","answers":[{"text":"B"}]}]}]}]})");
  EXPECT_SAYS(test::error_of([&] { read_squad(squad); }), "squad.json: entry 1 of \"data\"");
  EXPECT_EQ(read_squad(squad, /*skip_bad=*/true).skipped, 1);
  EXPECT_EQ(read_squad(squad, /*skip_bad=*/true).questions.size(), 1U);

  const auto hotpot = file("hotpot.json",
                           R"([{"question":"Q","answer":"A","context":[["T",["a"]]]},
                               {"question":"Q","answer":" ","context":[["T",["a"]]]}])");
  EXPECT_SAYS(test::error_of([&] { read_hotpot(hotpot); }), "hotpot.json: entry 2 is none");
  EXPECT_EQ(read_hotpot(hotpot, /*skip_bad=*/true).questions.size(), 1U);

  const auto lines = file("lines.jsonl",
                          "{\"question\":\"q\",\"answer\":\"a\"}\n{\"question\":\"q\",\"answer\":"
                          "\"\"}\n{\"question\":\"q\",\"answers\":[\"a\",\"\\n\"]}\n");
  const auto read_lines = [&](bool skip) {
    return read_few_shot(lines.string(), "test", {.skip_bad = skip});
  };
  EXPECT_SAYS(test::error_of([&] { read_lines(false); }), "lines.jsonl:2 has no text");
  EXPECT_EQ(read_lines(true).skipped, 2);
  EXPECT_EQ(read_lines(true).items.size(), 1U);

  const auto babi = file("qa1_x.txt",
                         "1 Mary moved to the office.\n2 Where is Mary? \toffice\t1\n"
                         "3 Where is Mary? \t\t1\n4  \toffice\t1\n");
  EXPECT_SAYS(test::error_of([&] { read_babi(babi); }),
              "qa1_x.txt:3 has no question or no answer; --skip-bad leaves such lines out");
  EXPECT_EQ(read_babi(babi, /*skip_bad=*/true).skipped, 2);
  EXPECT_EQ(read_babi(babi, /*skip_bad=*/true).stories.size(), 1U);
}

TEST_F(DataFiles, QuestionsWithoutDocumentsAreMalformed) {
  const auto some = file("some.json",
                         R"([{"question":"Q","answer":"A","context":[]},
                             {"question":"Q","answer":"A","context":[["T",["a"]]]}])");
  EXPECT_SAYS(test::error_of([&] { read_hotpot(some); }), "some.json: entry 1 is none of HotpotQA");
  const RulerQuestions questions = read_hotpot(some, /*skip_bad=*/true);
  EXPECT_EQ(questions.skipped, 1);
  PythonRandom random(1);
  EXPECT_NE(ruler_question(questions, random, 1, 0).text.find("Document 1:\nT\na"),
            std::string::npos);
  const auto none = file("none.json", R"([{"question":"Q","answer":"A","context":[]}])");
  EXPECT_SAYS(test::error_of([&] { read_hotpot(none, /*skip_bad=*/true); }),
              "none.json has no question with an answer");
}

}  // namespace
}  // namespace reynard::evaluation
