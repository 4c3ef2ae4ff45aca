// Prompts are those that were published, word for word and slip for slip: digests of the templates
// in the repositories that NOTICE names.

#include "reynard/checkpoint/sha256.h"
#include "reynard/evaluation/babilong.h"
#include "reynard/evaluation/longbench.h"
#include "reynard/evaluation/ruler.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <regex>
#include <sstream>
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

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.rfind(before) + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

RulerSample ruler_sample(std::string_view task) {
  RulerSources sources;
  for (int i = 0; i < 26 * 26; ++i) {
    sources.words.push_back(std::string("word") + static_cast<char>('a' + i / 26) +
                            static_cast<char>('a' + i % 26));
    sources.essay_words.push_back(sources.words.back() + (i % 9 == 8 ? "." : ""));
  }
  sources.squad = {{"D1", "D2"}, {{"WHICH?", {"one"}, {0}, {1}}}, 0};
  sources.hotpot = sources.squad;
  PythonRandom random(7);
  return ruler_task_named(task).make(sources, random, 60, 8192, 0);
}

// What the published script fills in is `context`, between what stands before and behind it, and
// `query`.
struct RulerPrompt {
  std::string text;  // with {context} and {query} in their places
  std::string context;
};

RulerPrompt ruler_prompt(std::string_view task) {
  struct Slots {
    const char* begin;           // of the template, behind a solved example
    const char* before_context;  // and behind it
    const char* after_context;
    const char* before_query;
    const char* after_query;
  };
  static const std::map<std::string_view, Slots> kSlots = {
      {"niah", {" special magic", "afterwards.\n", "\nWhat ", " for ", " mentioned"}},
      {"vt",
       {"Memorize and track",
        "following text.\n\n",
        "\nQuestion: ",
        "assigned the value ",
        ", they are"}},
      {"cwe", {"Below is a numbered", "appear most often.\n", "\nQuestion: ", nullptr, nullptr}},
      {"fwe", {"Read the following", "coded words. ", "\nQuestion: ", nullptr, nullptr}},
      {"qa",
       {"Answer the question", "documents.\n\n", "\n\nAnswer ", "\n\nQuestion: ", " Answer"}}};
  const Slots& slots = kSlots.at(task.substr(0, task.find('_')));
  const std::string whole = ruler_sample(task).text;
  // A solved example ends before the last beginning of the template.
  const bool solved = task == "vt" || task == "cwe";
  std::string text = solved ? whole.substr(whole.rfind(slots.begin)) : whole;
  const size_t begin = text.find(slots.before_context) + std::string(slots.before_context).size();
  const size_t end = text.rfind(slots.after_context);
  RulerPrompt prompt{text.substr(0, begin) + "{context}" + text.substr(end),
                     text.substr(begin, end - begin)};
  if (slots.before_query != nullptr) {
    replace_all(
        prompt.text, between(prompt.text, slots.before_query, slots.after_query), "{query}");
  }
  return prompt;
}

// TASKS of scripts/data/synthetic/constants.py of NVIDIA/RULER, template and answer_prefix, as
// niah.py and variable_tracking.py fill them in for the task of scripts/synthetic.yaml.
TEST(PublishedPrompts, Ruler) {
  const std::map<std::string_view, std::string> published = {
      {"niah_single_1", "dbd48c611864c202"},
      {"niah_single_2", "dbd48c611864c202"},
      {"niah_single_3", "577123cf6aa58924"},
      {"niah_multikey_1", "dbd48c611864c202"},
      {"niah_multikey_2", "dbd48c611864c202"},
      {"niah_multikey_3", "577123cf6aa58924"},
      {"niah_multivalue", "5bae2b3a02142aa2"},
      {"niah_multiquery", "5bae2b3a02142aa2"},
      {"vt", "c3d693a4658b6b70"},
      {"cwe", "c2426f94a28fc3a2"},
      {"fwe", "0bfad42dcc7b1cff"},
      {"qa_1", "15017066bdc1a167"},
      {"qa_2", "15017066bdc1a167"}};
  ASSERT_EQ(ruler_tasks().size(), published.size());
  for (const RulerTask& task : ruler_tasks()) {
    const RulerPrompt prompt = ruler_prompt(task.name);
    EXPECT_EQ(digest(prompt.text), published.at(task.name)) << task.name << ": " << prompt.text;
  }
}

// What stands in the contexts: `needle` and `haystack` of niah.py, DOCUMENT_PROMPT of qa.py, the
// lines of variable_tracking.py and the lists of common_words_extraction.py.
TEST(PublishedPrompts, RulerContexts) {
  constexpr const char* kGrass = "c2fcf70de6081e6f";
  for (const char* task :
       {"niah_single_1", "niah_multikey_2", "niah_multikey_3", "niah_single_3"}) {
    const std::regex needle("One of [a-z ]* for (\\S+) is: ([0-9a-f-]+)\\.");
    const std::string context = ruler_prompt(task).context;
    int needles = 0;
    for (std::sregex_iterator found(context.begin(), context.end(), needle), end; found != end;
         ++found, ++needles) {
      std::string text = found->str();
      replace_all(text, (*found)[1], "{key}");
      replace_all(text, (*found)[2], "{value}");
      const bool uuids = text.find("uuids") != std::string::npos;
      EXPECT_EQ(digest(text), uuids ? "4eb94b582e37a46e" : "9c3cb020a3f39af3") << text;
    }
    EXPECT_EQ(needles, std::string_view(task).starts_with("niah_multikey") ? 61 : 1) << task;
  }
  std::istringstream noise(ruler_prompt("niah_single_1").context);
  int lines = 0;
  for (std::string line; std::getline(noise, line);) {
    if (line.starts_with("One of")) continue;
    EXPECT_EQ(digest(line), kGrass);
    ++lines;
  }
  EXPECT_EQ(lines, 60);

  std::istringstream variables(ruler_prompt("vt").context);
  std::string last;
  for (std::string line; std::getline(variables, line);) {
    if (digest(line) == kGrass) continue;
    const std::string name = line.substr(4, 5);
    const std::string value = last.empty() ? line.substr(12) : "VAR " + last + " ";
    EXPECT_EQ(line, "VAR " + name + " = " + value);
    last = name;
  }
  const std::string solved = ruler_sample("vt").text;
  const std::regex example(", they are:  ([A-Z]{3} ){4}[A-Z]{3}\n\nMemorize and track");
  EXPECT_TRUE(std::regex_search(solved, example)) << solved;

  EXPECT_TRUE(ruler_prompt("cwe").context.starts_with("1. word"));
  const std::regex list("in the list are: 1\\. (\\w+ \\d+\\. ){9}\\w+\nBelow is a numbered");
  EXPECT_TRUE(std::regex_search(ruler_sample("cwe").text, list));
  for (const char* task : {"qa_1", "qa_2"}) {
    std::istringstream documents(ruler_prompt(task).context);
    std::string line;
    for (int i = 1; std::getline(documents, line); ++i) {
      EXPECT_EQ(line, "Document " + std::to_string(i) + ":");
      std::getline(documents, line);
      EXPECT_TRUE(line == "D1" || line == "D2") << line;
      if (std::getline(documents, line)) {
        EXPECT_EQ(line, "");
      }
    }
  }
}

}  // namespace
}  // namespace reynard::evaluation
