// RULER's generators: the published prompts and structure.

#include "reynard/evaluation/ruler.h"

#include "reynard/evaluation/evaluation_config.h"
#include "reynard/evaluation/registry.h"
#include "reynard/tensor/check.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace reynard::evaluation {
namespace {

using nlohmann::json;

RulerSources sources() {
  RulerSources sources;
  for (int i = 0; i < 200; ++i) {
    sources.words.push_back(std::string("w") + static_cast<char>('a' + i / 26) +
                            static_cast<char>('a' + i % 26));
  }
  for (int i = 0; i < 3000; ++i) {
    sources.essay_words.push_back(sources.words[i * 7 % 200] + (i % 9 == 8 ? "." : ""));
  }
  sources.squad = {{"doc one", "doc two", "doc three"}, {{"Which?", {"one", "uno"}, {0}, {}}}, 0};
  sources.hotpot = sources.squad;
  return sources;
}

RulerSample sample(const char* name, int64_t size, int64_t length = 8192, uint64_t seed = 1) {
  PythonRandom random(seed);
  return ruler_task_named(name).make(sources(), random, size, length, 0);
}

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Ruler, HasThe13TasksWithTheirAnswers) {
  ASSERT_EQ(ruler_tasks().size(), 13);
  const std::map<std::string_view, size_t> answers = {{"niah_multivalue", 4},
                                                      {"niah_multiquery", 4},
                                                      {"vt", 5},
                                                      {"cwe", 10},
                                                      {"fwe", 3},
                                                      {"qa_1", 2},
                                                      {"qa_2", 2}};
  for (const RulerTask& task : ruler_tasks()) {
    SCOPED_TRACE(task.name);
    for (uint64_t seed = 0; seed < 5; ++seed) {
      PythonRandom random(seed);
      const RulerSample made = task.make(sources(), random, 100, 8192, 0);
      const auto expected = answers.find(task.name);
      EXPECT_EQ(made.answers.size(), expected == answers.end() ? 1 : expected->second);
      for (const std::string& answer : made.answers) {
        if (task.name.substr(0, 2) != "qa") {
          EXPECT_NE(made.text.find(answer), std::string::npos);
        }
      }
      EXPECT_EQ(std::set(made.answers.begin(), made.answers.end()).size(), made.answers.size());
    }
  }
}

TEST(Ruler, OneNeedleIsAskedForInTheSingular) {
  const RulerSample made = sample("niah_single_1", 20);
  std::smatch key;
  const std::regex needle("One of the special magic numbers for (\\w+-\\w+) is: (\\d{7})\\.");
  ASSERT_TRUE(std::regex_search(made.text, key, needle));
  EXPECT_EQ(made.answers, std::vector<std::string>{key[2]});
  const std::string query = key[1];
  EXPECT_TRUE(
      made.text.starts_with("A special magic number is hidden within the following text. Make sure "
                            "to memorize it. I will "
                            "quiz you about the number afterwards.\nThe grass is green."));
  EXPECT_TRUE(made.text.ends_with("\nWhat is the special magic number for " + query +
                                  " mentioned in the provided text? The special magic number for " +
                                  query + " mentioned in the provided text is"));
  EXPECT_EQ(count(made.text, "\nThe grass is green."), 20);
}

TEST(Ruler, SeveralQueriesAreJoinedAndAskedForInThePlural) {
  const RulerSample made = sample("niah_multiquery", 200);
  const std::regex question(
      "\nWhat are all the special magic numbers for ([^,]+), ([^,]+), ([^,]+), and ([^,]+) "
      "mentioned "
      "in the provided text\\? The special magic numbers for [^?]* mentioned in the provided text "
      "are$");
  std::smatch keys;
  ASSERT_TRUE(std::regex_search(made.text, keys, question)) << made.text;
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(made.text.find("One of the special magic numbers for " + keys[i + 1].str() +
                             " is: " + made.answers[i] + "."),
              std::string::npos);
  }
}

TEST(Ruler, DistractorsAreNeedlesOfTheSameKind) {
  const RulerSample made = sample("niah_multikey_3", 30);
  EXPECT_EQ(count(made.text, "One of the special magic uuids for "), 31);
  const std::regex uuid("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  EXPECT_TRUE(std::regex_match(made.answers[0], uuid)) << made.answers[0];
  EXPECT_NE(made.text.find("A special magic uuid is hidden"), std::string::npos);
}

TEST(Ruler, ChainOfVariablesKeepsItsOrder) {
  const RulerSample made = sample("vt", 40);
  size_t at = made.text.rfind("Memorize and track the chain(s)");
  ASSERT_GT(at, 0);  // behind the solved example
  EXPECT_NE(made.text.substr(at).find(
                " Answer: According to the chain(s) of variable assignment in the text above, 5 "
                "variables are assigned the value "),
            std::string::npos);
  EXPECT_TRUE(made.text.ends_with(", they are: "));
  for (size_t i = 0; i < made.answers.size(); ++i) {
    EXPECT_EQ(made.answers[i].size(), 5);
    const std::string line = i == 0 ? "VAR " + made.answers[0] + " = "
                                    : "VAR " + made.answers[i] + " = VAR " + made.answers[i - 1];
    const size_t found = made.text.find(line, at);
    ASSERT_NE(found, std::string::npos) << line;
    at = found;
  }
}

TEST(Ruler, CommonWordsAreTheMostFrequent) {
  for (const int64_t length : {1000, 8192}) {
    const RulerSample made = sample("cwe", 30, length);
    const size_t list = made.text.rfind("Memorize the ones that appear most often.\n");
    std::istringstream words(made.text.substr(list + 42));
    std::map<std::string, int> times;
    std::string number;
    std::string word;
    while (words >> number >> word && number != "Question:") ++times[word];
    for (const std::string& common : made.answers) {
      EXPECT_EQ(times[common], length < 4096 ? 6 : 30);
      times.erase(common);
    }
    EXPECT_EQ(times.size(), 20);
    for (const auto& [other, n] : times) EXPECT_EQ(n, length < 4096 ? 1 : 3) << other;
  }
}

TEST(Ruler, CodedWordsFollowTheZetaDistribution) {
  const RulerSample made = sample("fwe", 1000, 4000);
  // floor(1000 r^-2 / zeta(2)) for r = 2, 3, 4.
  EXPECT_EQ(count(made.text, made.answers[0]), 151);
  EXPECT_EQ(count(made.text, made.answers[1]), 67);
  EXPECT_EQ(count(made.text, made.answers[2]), 37);
  EXPECT_GT(count(made.text, "..."), 600);  // the most frequent word is hidden
}

TEST(Ruler, QuestionHasItsDocumentsAmongOthers) {
  const RulerSample made = sample("qa_1", 2);
  EXPECT_NE(made.text.find("doc one"), std::string::npos);
  EXPECT_EQ(count(made.text, "Document "), 2);
  EXPECT_TRUE(made.text.ends_with("\n\nQuestion: Which? Answer:"));
  EXPECT_EQ(made.answers, (std::vector<std::string>{"one", "uno"}));
}

TEST(Ruler, DocumentsOfTheSameArticleComeBeforeOthers) {
  RulerQuestions data;
  for (int i = 0; i < 40; ++i) data.documents.push_back("text " + std::to_string(i) + ".");
  data.questions = {{"Which?", {"one"}, {5}, {6, 7, 8}}};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    PythonRandom random(seed);
    const std::string few = ruler_question(data, random, 3, 0).text;
    int nearby = 0;
    for (const char* text : {"text 6.", "text 7.", "text 8."}) nearby += count(few, text);
    EXPECT_EQ(count(few, "text 5."), 1);
    EXPECT_EQ(nearby, 2) << few;
    const std::string more = ruler_question(data, random, 10, 0).text;
    for (const char* text : {"text 5.", "text 6.", "text 7.", "text 8."}) {
      EXPECT_EQ(count(more, text), 1) << more;
    }
    EXPECT_EQ(count(more, "Document "), 10);
    // More than there are: all of them again.
    const std::string all = ruler_question(data, random, 100, 0).text;
    EXPECT_EQ(count(all, "Document "), 100);
    EXPECT_EQ(count(all, "text 3."), 3);
    EXPECT_EQ(count(all, "text 39."), 2);
  }
}

// sentences[last:next] and needles joined by blanks, pieces without a sentence too.
TEST(Ruler, NeedlesStandBetweenTheSentencesOfAnEssay) {
  RulerSources data = sources();
  data.essay_words = {"a", "b.", "c."};
  for (uint64_t seed = 0; seed < 50; ++seed) {
    PythonRandom random(seed);
    const RulerSample made = ruler_task_named("niah_single_2").make(data, random, 3, 8192, 0);
    const size_t begin = made.text.find("afterwards.\n") + 12;
    std::string context = made.text.substr(begin, made.text.find("\nWhat is") - begin);
    const size_t needle = context.find("One of the special magic");
    ASSERT_NE(needle, std::string::npos);
    const size_t end = context.find(made.answers[0] + ".", needle) + made.answers[0].size() + 1;
    context.replace(needle, end - needle, "N");
    EXPECT_TRUE(context == " N a b. c." || context == "a b. N c." || context == "a b. c. N ")
        << "'" << context << "'";
  }
}

TEST(Ruler, KeysAreAdjectivesAndNounsWhereTheListsAreThere) {
  RulerSources data = sources();
  data.adjectives = {"green", "quiet"};
  data.nouns = {"river", "ice cream"};
  PythonRandom random(1);
  const RulerSample made = ruler_task_named("niah_multikey_1").make(data, random, 50, 8192, 0);
  const std::regex key("special magic numbers for (green|quiet)-(river|ice cream) is: ");
  EXPECT_EQ(std::distance(std::sregex_iterator(made.text.begin(), made.text.end(), key), {}), 4);
}

// The words of sources() in a file that settings name.
EvaluationConfig config_with_words(const test::TempDir& folder) {
  std::string words;
  for (const std::string& word : sources().words) words += word + "\n";
  EvaluationConfig config;
  config.ruler.words = (folder / "words.txt").string();
  test::write_file(config.ruler.words, words);
  return config;
}

// The prompt of the solved example fills 500 tokens, as published.
TEST(Ruler, TheSolvedExampleOfVariablesHas500Tokens) {
  Corpus corpus = test::corpus_of(std::vector<int64_t>(100, 'a'), {100});
  const test::TempDir folder;
  EvaluationConfig config = config_with_words(folder);
  config.ruler.tasks = {"vt"};
  config.ruler.lengths = {8000};
  config.ruler.samples = 1;
  const auto lines = [&] {
    return task_named("ruler").make(corpus, config, {})->settings().at("example_lines");
  };
  EXPECT_EQ(lines(), 5);  // of bytes not even these fit
  const auto bytes = corpus.encode;
  corpus.encode = [&](std::string_view text) {  // four bytes a token
    return std::vector<int64_t>((text.size() + 3) / 4, 'a');
  };
  const int64_t most = lines();
  EXPECT_GT(most, 5);
  PythonRandom random(0);
  EXPECT_LE(ruler_variables(random, most, 3).text.size(), 2000U);
  EXPECT_GT(ruler_variables(random, most + 1, 3).text.size(), 2000U);
  config.ruler.lengths = {100};
  try {
    task_named("ruler").make(corpus, config, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("prompt and answer of vt alone"), std::string::npos)
        << e.what();
  }
  // By default only lengths that hold the prompts.
  config.ruler.lengths = {};
  const json lengths =
      task_named("ruler").make(corpus, config, {.train_length = 1024})->settings().at("lengths");
  EXPECT_EQ(lengths, (json{1024, 2048, 4096}));
}

// Words of the text are whole ones, and answers are compared as published, which they once were
// not.
TEST(Ruler, SettingsSayHowSamplesAreMadeAndScored) {
  std::string text;
  for (const std::string& word : sources().words) text += word + " ";
  const Corpus corpus = test::corpus_of({text.begin(), text.end()}, {std::ssize(text)});
  const test::TempDir folder;
  EvaluationConfig config = config_with_words(folder);
  config.ruler.tasks = {"niah_single_1"};
  config.ruler.lengths = {2000};
  const auto settings = [&] { return task_named("ruler").make(corpus, config, {})->settings(); };
  EXPECT_EQ(settings().at("scoring"), 2);
  config.ruler.words = "";
  EXPECT_EQ(settings().at("scoring"), 2);
}

// Of the answer control characters are line ends and white space around it does not count.
TEST(Ruler, AnswersAreComparedAsPublished) {
  const Corpus corpus = test::corpus_of(std::vector<int64_t>(100, 'a'), {100});
  const test::TempDir folder;
  EvaluationConfig config = config_with_words(folder);
  config.ruler.squad = (folder / "squad.json").string();
  test::write_file(config.ruler.squad,
                   R"({"data":[{"paragraphs":[{"context":"C","qas":[
                      {"question":"Q","answers":[{"text":"one\ntwo"},{"text":"three "}]}]}]}]})");
  config.ruler.tasks = {"qa_1"};
  config.ruler.lengths = {1000};
  const auto task = task_named("ruler").make(corpus, config, {});
  const Request request = task->requests().at(0);
  const auto score = [&](const std::string& written) {
    return task->sample(request, Generated{corpus.encode(written)}).at("score");
  };
  EXPECT_EQ(score(" One\nTwo."), 1.0);
  EXPECT_EQ(score(" One\tTwo."), 1.0);
  EXPECT_EQ(score(" One Two."), 0.0);
  EXPECT_EQ(score("three or"), 1.0);
  EXPECT_EQ(score("three \t"), 0.0);
  EXPECT_EQ(score(" \n"), 0.0);
}

// Of a length at which the samples of one task are missing, the other's mean is not that of both.
TEST(Ruler, OnlyWholeLengthsHaveAnAverage) {
  const Corpus corpus = test::corpus_of(std::vector<int64_t>(100, 'a'), {100});
  const test::TempDir folder;
  EvaluationConfig config = config_with_words(folder);
  config.ruler.tasks = {"niah_single_1", "niah_single_2"};
  config.ruler.lengths = {2000, 4000};
  config.ruler.samples = 2;
  const auto task = task_named("ruler").make(corpus, config, {});
  const Requests requests = task->requests();
  ASSERT_EQ(requests.size, 8);
  const auto measured_of = [&](int64_t answered) {
    return task->measure({answered, [&, answered](const auto& take) {
                            for (int64_t i = 0; i < answered; ++i) {
                              json line = requests.at(i).about;
                              line["score"] = 1;
                              take(line);
                            }
                          }});
  };
  for (const int64_t answered : {4, 6, 7}) {
    const Measured part = measured_of(answered);
    EXPECT_EQ(part.metrics.at("effective_length").at("text"), ">2000") << answered;
    EXPECT_EQ(part.series.at("averages"), json::array({{{"length", 2000}, {"score", 1.0}}}))
        << answered;
  }
  EXPECT_FALSE(measured_of(3).metrics.contains("effective_length")) << "no length is whole";
  EXPECT_EQ(measured_of(8).metrics.at("effective_length").at("text"), ">4000");
}

TEST(Ruler, ListsOfTheWordPackageAreReadAsTheyAre) {
  const Corpus corpus = test::corpus_of(std::vector<int64_t>(100, 'a'), {100});
  const test::TempDir folder;
  std::string nouns;
  for (const std::string& word : sources().words) nouns += word + "\n";
  test::write_file(folder / "nounlist.txt", nouns + "ice cream\n");
  test::write_file(folder / "adjectivelist.txt", "green\r\nquiet\r\n");
  EvaluationConfig config;
  config.ruler.words = folder.path().string();
  config.ruler.tasks = {"niah_single_1"};
  config.ruler.lengths = {2000};
  try {
    task_named("ruler").make(corpus, config, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("verblist.txt"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("wonderwords"), std::string::npos) << e.what();
  }
  test::write_file(folder / "verblist.txt", "walk\nquiet\n");
  const auto settings = task_named("ruler").make(corpus, config, {})->settings();
  EXPECT_EQ(settings.at("num_words"), 200 + 1 + 2 + 1);
  EXPECT_EQ(settings.at("files").size(), 3U);
}

TEST(Ruler, ReadsThePublishedQuestionFiles) {
  const test::TempDir folder;
  test::write_file(folder / "squad.json",
                   R"({"data":[{"paragraphs":[{"context":"C1","qas":[
                      {"question":"Q1","answers":[{"text":"A"},{"text":"B"}]},
                      {"question":"Q2","answers":[],"is_impossible":true}]},
                      {"context":"C2","qas":[]},{"context":"C1","qas":[]}]}]})");
  const RulerQuestions squad = read_squad(folder / "squad.json");
  ASSERT_EQ(squad.questions.size(), 1);
  EXPECT_EQ(squad.questions[0].answers, (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(squad.questions[0].nearby, std::vector<size_t>{1});
  test::write_file(folder / "hotpot.json",
                   R"([{"question":"Q","answer":"A","context":[["T1",["a ","b"]],["T2",["c"]]]}])");
  const RulerQuestions hotpot = read_hotpot(folder / "hotpot.json");
  EXPECT_EQ(hotpot.documents, (std::vector<std::string>{"T1\na b", "T2\nc"}));
  EXPECT_EQ(hotpot.questions[0].documents, (std::vector<size_t>{0, 1}));
  EXPECT_THROW(read_squad(folder / "hotpot.json"), Error);
  EXPECT_THROW(read_hotpot(folder / "squad.json"), Error);
  const auto error_of = [&](const char* file) {
    return test::error_of([&] { read_squad(folder / file); });
  };
  EXPECT_NE(error_of("missing.json").find("download https://rajpurkar.github.io"),
            std::string::npos);
  test::write_file(folder / "bad.json",
                   R"({"data":[{"paragraphs":[{"context":"C1","qas":[
                      {"question":"Q1","answers":[{"text":"A"}]}]}]}, {"paragraphs":3}]})");
  EXPECT_NE(error_of("bad.json").find("entry 2 of \"data\" is no article"), std::string::npos)
      << error_of("bad.json");
  const RulerQuestions skipped = read_squad(folder / "bad.json", /*skip_bad=*/true);
  EXPECT_EQ(skipped.skipped, 1);
  EXPECT_EQ(skipped.questions.size(), 1);
}

TEST(Ruler, MissingDataNamesWhatToDownload) {
  const Corpus corpus = test::corpus_of(std::vector<int64_t>(100, 'a'), {100});
  EvaluationConfig config;
  config.ruler.tasks = {"qa_2"};
  const auto error = [&]() -> std::string {
    try {
      task_named("ruler").make(corpus, config, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error().find("give more text or a list as --ruler.words"), std::string::npos)
      << error();
  const test::TempDir folder;
  std::string words;
  for (const std::string& word : sources().words) words += word + "\n";
  test::write_file(folder / "words.txt", words);
  config.ruler.words = (folder / "words.txt").string();
  EXPECT_NE(error().find("hotpot/hotpot_dev_distractor_v1.json"), std::string::npos) << error();
  config.ruler.tasks = {"qa_3"};
  EXPECT_NE(error().find("no task is called 'qa_3'"), std::string::npos) << error();
}

TEST(Ruler, WordsComeInOrderAndOnce) {
  EXPECT_EQ(words_of("The cat sat; the cat! It ran-away on.", 3),
            (std::vector<std::string>{"cat", "sat", "the"}));
}

// Not the rest of a word with a capital, nor a piece beside a letter beyond ASCII.
TEST(Ruler, WordsAreNoPiecesOfOthers) {
  EXPECT_EQ(words_of("Walking walking caf\u00e9 \u00e9toile McDonald", 9),
            std::vector<std::string>{"walking"});
  EXPECT_EQ(words_of("\u201cso\u201d they\u2014said", 9),
            (std::vector<std::string>{"they", "said"}));
}

}  // namespace
}  // namespace reynard::evaluation
