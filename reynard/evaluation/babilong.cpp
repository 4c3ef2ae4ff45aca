#include "reynard/evaluation/babilong.h"

#include "reynard/evaluation/babilong_worlds.h"
#include "reynard/evaluation/named.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/task_files.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <set>
#include <sstream>

namespace reynard::evaluation {

namespace {

// Benchmark data, quoted exactly (NOTICE).
const std::vector<std::string_view> kPlaceLabels = {
    "bathroom", "bedroom", "garden", "hallway", "kitchen", "office"};
const std::vector<std::string_view> kGiftLabels = {
    "Bill", "Fred", "Jeff", "Mary", "apple", "football", "milk"};

// What the answer says, as published: lower case, its first sentence, up to an example.
std::string first_sentence(const std::string& written) {
  std::string text = lower_case(written);
  for (const char* end : {".", "<context>", "<example>"}) text = text.substr(0, text.find(end));
  return text;
}

}  // namespace

std::span<const BabiTask> babi_tasks() {
  static const std::vector<BabiTask> list = {
      {"qa1",
       "I will give you context with the facts about positions of different persons hidden in some "
       "random text and a question. You need to answer the question based only on the information "
       "from the facts. If a person was in different locations, use the latest location to answer "
       "the question.",
       "<example>\nCharlie went to the hallway. Judith come back to the kitchen. Charlie travelled "
       "to balcony. Where is Charlie?\nAnswer: The most recent location of Charlie is "
       "balcony.\n</example>\n\n<example>\nAlan moved to the garage. Charlie went to the beach. "
       "Alan went to the shop. Rouse travelled to balcony. Where is Alan?\nAnswer: The most recent "
       "location of Alan is shop.\n</example>",
       "Always return your answer in the following format: The most recent location of ’person’ is "
       "’location’. Do not write anything else after that.",
       kPlaceLabels,
       one_fact_story},
      {"qa2",
       "I give you context with the facts about locations and actions of different persons hidden "
       "in some random text and a question.You need to answer the question based only on the "
       "information from the facts.\nIf a person got an item in the first location and travelled "
       "to "
       "the second location the item is also in the second location. If a person dropped an item "
       "in "
       "the first location and moved to the second location the item remains in the first "
       "location.",
       "<example>\nCharlie went to the kitchen. Charlie got a bottle. Charlie moved to the "
       "balcony. "
       "Where is the bottle?\nAnswer: The bottle is in the balcony.\n</example>\n<example>\nAlan "
       "moved to the garage. Alan got a screw driver. Alan moved to the kitchen. Where is the "
       "screw "
       "driver?\nAnswer: The screw driver is in the kitchen.\n</example>",
       "Always return your answer in the following format: The ’item’ is in ’location’. Do not "
       "write anything else after that.",
       kPlaceLabels,
       two_facts_story},
      {"qa3",
       "I give you context with the facts about locations and actions of different persons hidden "
       "in some random text and a question. You need to answer the question based only on the "
       "information from the facts.\nIf a person got an item in the first location and travelled "
       "to "
       "the second location the item is also in the second location. If a person dropped an item "
       "in "
       "the first location and moved to the second location the item remains in the first "
       "location.",
       "<example>\nJohn journeyed to the bedroom. Mary grabbed the apple. Mary went back to the "
       "bathroom. Daniel journeyed to the bedroom. Daniel moved to the garden. Mary travelled to "
       "the kitchen. Where was the apple before the kitchen?\nAnswer: Before the kitchen the apple "
       "was in the bathroom.\n</example>\n<example>\nJohn went back to the bedroom. John went back "
       "to the garden. John went back to the kitchen. Sandra took the football. Sandra travelled "
       "to "
       "the garden. Sandra journeyed to the bedroom. Where was the football before the "
       "bedroom?\nAnswer: Before the bedroom the football was in the garden.\n</example>",
       "Always return your answer in the following format: Before the $location_1$ the $item$ was "
       "in the $location_2$. Do not write anything else after that.",
       kPlaceLabels,
       three_facts_story},
      {"qa4",
       "I will give you context with the facts about different people, their location and actions, "
       "hidden in some random text and a question. You need to answer the question based only on "
       "the information from the facts.",
       "<example>\nThe hallway is south of the kitchen. The bedroom is north of the kitchen. What "
       "is the kitchen south of?\nAnswer: bedroom\n</example>\n<example>\nThe garden is west of "
       "the "
       "bedroom. The bedroom is west of the kitchen. What is west of the bedroom?\nAnswer: "
       "garden\n</example>",
       "Your answer should contain only one word - location. Do not write anything else after "
       "that.",
       kPlaceLabels,
       relation_story},
      {"qa5",
       "I will give you context with the facts about locations and their relations hidden in some "
       "random text and a question. You need to answer the question based only on the information "
       "from the facts.",
       "<example>\nMary picked up the apple there. Mary gave the apple to Fred. Mary moved to the "
       "bedroom. Bill took the milk there. Who did Mary give the apple to?\nAnswer: "
       "Fred\n</example>\n<example>\nJeff took the football there. Jeff passed the football to "
       "Fred. Jeff got the milk there. Bill travelled to the bedroom. Who gave the "
       "football?\nAnswer: Jeff\n</example>\n<example>\nFred picked up the apple there. Fred "
       "handed "
       "the apple to Bill. Bill journeyed to the bedroom. Jeff went back to the garden. What did "
       "Fred give to Bill?\nAnswer: apple\n</example>",
       "Your answer should contain only one word. Do not write anything else after that. Do not "
       "explain your answer.",
       kGiftLabels,
       giving_story},
  };
  return list;
}

const BabiTask& babi_task_named(std::string_view name) {
  return find_named("babilong", babi_tasks(), name);
}

BabiFile read_babi(const std::filesystem::path& path, bool skip_bad) {
  BabiFile file;
  std::vector<std::string> facts;
  std::istringstream in(read_task_text(path, "babilong"));
  int64_t number = 0;
  const auto malformed = [&](std::string_view problem) {
    if (!skip_bad) {
      throw Error(fmt::format(
          "babilong: {}:{} {}; --skip-bad leaves such lines out", path.string(), number, problem));
    }
    ++file.skipped;
  };
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const size_t digits = line.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string::npos || line[digits] != ' ') {
      malformed("does not begin with a number and a space");
      continue;
    }
    if (line.substr(0, digits) == "1") facts.clear();
    const std::string sentence = line.substr(digits + 1);
    const size_t tab = sentence.find('\t');
    if (tab == std::string::npos) {
      facts.push_back(sentence);
      continue;
    }
    // "Where is Mary? <tab> bathroom <tab> 1"
    std::string question = sentence.substr(0, tab);
    while (question.ends_with(' ')) question.pop_back();
    const size_t end = sentence.find('\t', tab + 1);
    const std::string answer = sentence.substr(tab + 1, end - tab - 1);
    if (is_blank(question) || is_blank(answer)) {
      malformed("has no question or no answer");
      continue;
    }
    file.stories.push_back({facts, question, answer});
  }
  if (file.stories.empty()) throw Error(fmt::format("babilong: {} has no question", path.string()));
  return file;
}

std::string babilong_prompt(const BabiTask& task,
                            const std::string& context,
                            const std::string& question) {
  return fmt::format("{}\n\n{}\n\n{}\n\n<context>\n{}\n</context>\n\nQuestion: {}",
                     task.instruction,
                     task.examples,
                     task.format,
                     context,
                     question);
}

bool babilong_correct(const BabiTask& task,
                      const std::string& written,
                      const std::string& question,
                      const std::string& answer) {
  const std::string text = first_sentence(written);
  std::set<std::string> named;
  for (const std::string_view label : task.labels) {
    const std::string lower = lower_case(label);
    const bool asked = lower_case(question).find(lower) != std::string::npos;
    if (!asked && text.find(lower) != std::string::npos) named.insert(lower);
  }
  return named == std::set<std::string>{lower_case(answer)};
}

}  // namespace reynard::evaluation
