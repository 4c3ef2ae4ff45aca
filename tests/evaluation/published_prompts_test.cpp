// Prompts are those that were published, word for word and slip for slip: digests of the templates
// in the repositories that NOTICE names.

#include "reynard/checkpoint/sha256.h"
#include "reynard/evaluation/babilong.h"
#include "reynard/evaluation/longbench.h"
#include "reynard/evaluation/ruler.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <string_view>

namespace reynard::evaluation {
namespace {

std::string digest(std::string_view text) {
  return checkpoint::sha256_hex(text).substr(0, 16);
}

// config/dataset2prompt.json and dataset2maxlen.json of THUDM/LongBench.
TEST(PublishedPrompts, LongBench) {
  struct Published {
    const char* task;
    int64_t max_tokens;
    const char* digest;
  };
  constexpr std::array kPublished = {Published{"narrativeqa", 128, "aada7ed24b06abac"},
                                     Published{"qasper", 128, "0fbdd123fe7f83d6"},
                                     Published{"multifieldqa_en", 64, "20b4666a2de8a1f7"},
                                     Published{"hotpotqa", 32, "9ec4ae308865bd0c"},
                                     Published{"2wikimqa", 32, "9ec4ae308865bd0c"},
                                     Published{"musique", 32, "9ec4ae308865bd0c"},
                                     Published{"gov_report", 512, "91c25d585b189ced"},
                                     Published{"qmsum", 512, "dca23b678fe0183b"},
                                     Published{"multi_news", 512, "2af3f28c40b902e6"},
                                     Published{"trec", 64, "0eff8bebdba99d91"},
                                     Published{"triviaqa", 32, "00a802e6377e72fc"},
                                     Published{"samsum", 128, "a68d884234907eef"},
                                     Published{"lcc", 64, "6a1f24cf0bb83cd9"},
                                     Published{"repobench-p", 64, "ee9ec182ea5ffeb7"}};
  ASSERT_EQ(longbench_tasks().size(), kPublished.size());
  for (const Published& published : kPublished) {
    const LongbenchTask& task = longbench_task_named(published.task);
    EXPECT_EQ(digest(task.prompt), published.digest) << published.task;
    EXPECT_EQ(task.max_tokens, published.max_tokens) << published.task;
  }
}

// DEFAULT_TEMPLATE and DEFAULT_PROMPTS of booydar/babilong.
TEST(PublishedPrompts, Babilong) {
  const std::map<std::string_view, std::string> published = {{"qa1", "d2d0b53ac55e87b6"},
                                                             {"qa2", "477c043becbfeb71"},
                                                             {"qa3", "007ef44be15add41"},
                                                             {"qa4", "317a2e470ee00c3a"},
                                                             {"qa5", "16e4009afa0174ef"}};
  ASSERT_EQ(babi_tasks().size(), published.size());
  for (const BabiTask& task : babi_tasks()) {
    EXPECT_EQ(digest(babilong_prompt(task, "CONTEXT", "QUESTION")), published.at(task.name))
        << task.name;
  }
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

struct Slots {
  const char* begin;           // how the template begins, behind a solved example
  const char* before_context;  // what stands before {context} and behind it
  const char* after_context;
};

// A sample's template: {context} in place of what stands between.
std::string template_of(const RulerSample& sample, const Slots& slots) {
  const std::string text = sample.text.substr(sample.text.rfind(slots.begin));
  const size_t context = text.find(slots.before_context) + std::string(slots.before_context).size();
  return text.substr(0, context) + "{context}" + text.substr(text.rfind(slots.after_context));
}

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.rfind(before) + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

RulerSample ruler_sample(const char* task) {
  RulerSources sources;
  for (int i = 0; i < 26 * 26; ++i) {
    sources.words.push_back(std::string("word") + static_cast<char>('a' + i / 26) +
                            static_cast<char>('a' + i % 26));
    sources.essay_words.push_back(sources.words.back() + (i % 9 == 8 ? "." : ""));
  }
  sources.squad = {{"D1", "D2"}, {{"WHICH?", {"one"}, {0}, {1}}}, 0};
  PythonRandom random(7);
  return ruler_task_named(task).make(sources, random, 60, 8192, 0);
}

// TASKS of scripts/data/synthetic/constants.py of NVIDIA/RULER: template and answer_prefix.
TEST(PublishedPrompts, Ruler) {
  std::string needles =
      template_of(ruler_sample("niah_multivalue"),
                  {"Some special magic", "about the numbers afterwards.\n", "\nWhat are all"});
  replace_all(needles, between(needles, "magic numbers for ", " mentioned"), "{query}");
  replace_all(needles, "magic numbers", "magic {type_needle_v}");
  replace_all(needles, "about the numbers", "about the {type_needle_v}");
  EXPECT_EQ(digest(needles), "d285336585494ddc") << needles;

  std::string variables = template_of(ruler_sample("vt"),
                                      {"Memorize and track",
                                       "hidden in the following text.\n\n",
                                       "\nQuestion: Find all variables"});
  replace_all(variables, between(variables, "assigned the value ", ", they are"), "{query}");
  replace_all(variables, " 5 variables", " {num_v} variables");
  EXPECT_EQ(digest(variables), "2cb3a86e01be9650") << variables;

  EXPECT_EQ(digest(template_of(ruler_sample("cwe"),
                               {"Below is a numbered list of words",
                                "the ones that appear most often.\n",
                                "\nQuestion: "})),
            "c2426f94a28fc3a2");
  EXPECT_EQ(digest(template_of(ruler_sample("fwe"),
                               {"Read the following coded text", "coded words. ", "\nQuestion: "})),
            "0bfad42dcc7b1cff");

  std::string question = template_of(ruler_sample("qa_1"),
                                     {"Answer the question based on the given documents. Only give "
                                      "me the answer and do not output any other words.\n\nThe",
                                      "The following are given documents.\n\n",
                                      "\n\nAnswer the question"});
  replace_all(question, "WHICH?", "{query}");
  EXPECT_EQ(digest(question), "15017066bdc1a167") << question;
}

}  // namespace
}  // namespace reynard::evaluation
