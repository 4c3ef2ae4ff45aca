#include "reynard/evaluation/longbench.h"

#include "reynard/evaluation/named.h"
#include "reynard/evaluation/task_files.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace reynard::evaluation {

namespace {

// Benchmark data, quoted exactly, slips included (NOTICE).
constexpr std::string_view kStory =
    "You are given a story, which can be either a novel or a movie script, and a "
    "question. Answer the question asconcisely as you can, using a single phrase if "
    "possible. Do not provide any explanation.\n"
    "\n"
    "Story: {context}\n"
    "\n"
    "Now, answer the question based on the story asconcisely as you can, using a single "
    "phrase if possible. Do not provide any explanation.\n"
    "\n"
    "Question: {input}\n"
    "\n"
    "Answer:";
constexpr std::string_view kArticle =
    "You are given a scientific article and a question. Answer the question as concisely "
    "as you can, using a single phrase or sentence if possible. If the question cannot "
    "be answered based on the information in the article, write \"unanswerable\". If the "
    "question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not "
    "provide any explanation.\n"
    "\n"
    "Article: {context}\n"
    "\n"
    " Answer the question based on the above article as concisely as you can, using a "
    "single phrase or sentence if possible. If the question cannot be answered based on "
    "the information in the article, write \"unanswerable\". If the question is a yes/no "
    "question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n"
    "\n"
    "Question: {input}\n"
    "\n"
    "Answer:";
constexpr std::string_view kText =
    "Read the following text and answer briefly.\n"
    "\n"
    "{context}\n"
    "\n"
    "Now, answer the following question based on the above text, only give me the answer "
    "and do not output any other words.\n"
    "\n"
    "Question: {input}\n"
    "Answer:";
constexpr std::string_view kPassages =
    "Answer the question based on the given passages. Only give me the answer and do not "
    "output any other words.\n"
    "\n"
    "The following are given passages.\n"
    "{context}\n"
    "\n"
    "Answer the question based on the given passages. Only give me the answer and do not "
    "output any other words.\n"
    "\n"
    "Question: {input}\n"
    "Answer:";
constexpr std::string_view kReport =
    "You are given a report by a government agency. Write a one-page summary of the "
    "report.\n"
    "\n"
    "Report:\n"
    "{context}\n"
    "\n"
    "Now, write a one-page summary of the report.\n"
    "\n"
    "Summary:";
constexpr std::string_view kMeeting =
    "You are given a meeting transcript and a query containing a question or "
    "instruction. Answer the query in one or more sentences.\n"
    "\n"
    "Transcript:\n"
    "{context}\n"
    "\n"
    "Now, answer the query based on the above meeting transcript in one or more "
    "sentences.\n"
    "\n"
    "Query: {input}\n"
    "Answer:";
constexpr std::string_view kNews =
    "You are given several news passages. Write a one-page summary of all news. \n"
    "\n"
    "News:\n"
    "{context}\n"
    "\n"
    "Now, write a one-page summary of all the news.\n"
    "\n"
    "Summary:";
constexpr std::string_view kQuestions =
    "Please determine the type of the question below. Here are some examples of "
    "questions.\n"
    "\n"
    "{context}\n"
    "{input}";
constexpr std::string_view kTrivia =
    "Answer the question based on the given passage. Only give me the answer and do not "
    "output any other words. The following are some examples.\n"
    "\n"
    "{context}\n"
    "\n"
    "{input}";
constexpr std::string_view kDialogue =
    "Summarize the dialogue into a few short sentences. The following are some examples.\n"
    "\n"
    "{context}\n"
    "\n"
    "{input}";
constexpr std::string_view kCodeOfFile =
    "Please complete the code given below. \n"
    "{context}Next line of code:\n";
constexpr std::string_view kCodeOfFiles =
    "Please complete the code given below. \n"
    "{context}{input}Next line of code:\n";

constexpr bool kFirstLine = true;
constexpr bool kAllOfIt = false;
using enum LongbenchMetric;

constexpr std::array kLongbenchTasks = {
    LongbenchTask{"narrativeqa", kF1, 128, kAllOfIt, kStory},
    LongbenchTask{"qasper", kF1, 128, kAllOfIt, kArticle},
    LongbenchTask{"multifieldqa_en", kF1, 64, kAllOfIt, kText},
    LongbenchTask{"hotpotqa", kF1, 32, kAllOfIt, kPassages},
    LongbenchTask{"2wikimqa", kF1, 32, kAllOfIt, kPassages},
    LongbenchTask{"musique", kF1, 32, kAllOfIt, kPassages},
    LongbenchTask{"gov_report", kRougeL, 512, kAllOfIt, kReport},
    LongbenchTask{"qmsum", kRougeL, 512, kAllOfIt, kMeeting},
    LongbenchTask{"multi_news", kRougeL, 512, kAllOfIt, kNews},
    LongbenchTask{"trec", kClass, 64, kFirstLine, kQuestions},
    LongbenchTask{"triviaqa", kF1, 32, kFirstLine, kTrivia},
    LongbenchTask{"samsum", kRougeL, 128, kFirstLine, kDialogue},
    LongbenchTask{"lcc", kCode, 64, kAllOfIt, kCodeOfFile},
    LongbenchTask{"repobench-p", kCode, 64, kAllOfIt, kCodeOfFiles},
};

// The strings of a list; empty where it is none.
std::vector<std::string> strings_at(const nlohmann::json& object, const char* key) {
  std::vector<std::string> strings;
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return strings;
  for (const nlohmann::json& item : *list) {
    if (item.is_string()) strings.push_back(item.get<std::string>());
  }
  return strings;
}

// What is wrong with a line; empty: nothing.
std::string read_sample(const nlohmann::json& line,
                        const LongbenchTask& task,
                        LongbenchSample& sample) {
  const std::array texts = {std::pair{"input", &sample.input},
                            std::pair{"context", &sample.context}};
  for (const auto& [key, text] : texts) {
    if (!line.contains(key) || !line[key].is_string()) return fmt::format("no text \"{}\"", key);
    *text = line[key].get<std::string>();
  }
  sample.answers = strings_at(line, "answers");
  if (sample.answers.empty()) return "no texts in \"answers\"";
  sample.classes = strings_at(line, "all_classes");
  if (task.metric == kClass && sample.classes.empty()) return "no texts in \"all_classes\"";
  const auto length = line.find("length");
  if (length != line.end() && length->is_number_integer()) sample.words = length->get<int64_t>();
  return "";
}

}  // namespace

std::span<const LongbenchTask> longbench_tasks() {
  return kLongbenchTasks;
}

const LongbenchTask& longbench_task_named(std::string_view name) {
  return find_named("longbench", kLongbenchTasks, name);
}

LongbenchFile read_longbench(const std::filesystem::path& path,
                             const LongbenchTask& task,
                             bool skip_bad) {
  const JsonLines lines = read_json_lines(
      path,
      "longbench",
      skip_bad,
      "download data.zip from https://huggingface.co/datasets/THUDM/LongBench, unpack it and name "
      "its folder of .jsonl files with --longbench.data=FOLDER");
  LongbenchFile file{{}, lines.skipped};
  for (size_t i = 0; i < lines.lines.size(); ++i) {
    LongbenchSample sample;
    sample.line = lines.numbers[i];
    const std::string problem = read_sample(lines.lines[i], task, sample);
    if (problem.empty()) {
      file.samples.push_back(std::move(sample));
    } else if (skip_bad) {
      ++file.skipped;
    } else {
      throw Error(fmt::format("longbench: {}:{} has {}; --skip-bad leaves such lines out",
                              path.string(),
                              sample.line,
                              problem));
    }
  }
  if (file.samples.empty()) throw Error(fmt::format("longbench: {} has no sample", path.string()));
  return file;
}

std::string longbench_prompt(const LongbenchTask& task, const LongbenchSample& sample) {
  // One pass: braces inside of a context are text.
  std::string prompt;
  std::string_view rest = task.prompt;
  while (!rest.empty()) {
    const size_t brace = rest.find('{');
    prompt += rest.substr(0, brace);
    if (brace == std::string_view::npos) break;
    const size_t end = rest.find('}', brace);
    prompt += rest.substr(brace + 1, end - brace - 1) == "context" ? sample.context : sample.input;
    rest.remove_prefix(end + 1);
  }
  return prompt;
}

std::string_view longbench_bucket(int64_t words) {
  if (words < 4000) return "0-4k";
  return words < 8000 ? "4-8k" : "8k+";
}

}  // namespace reynard::evaluation
