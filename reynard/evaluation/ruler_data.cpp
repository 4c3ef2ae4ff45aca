// RULER's questions (qa_1, qa_2) from the published development sets of SQuAD and HotpotQA.

#include "reynard/evaluation/ruler.h"

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/shuffle.h"
#include "reynard/evaluation/task_files.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

namespace reynard::evaluation {

namespace {

// Benchmark data, quoted exactly (NOTICE).
// {0}: documents, {1}: question.
constexpr std::string_view kQuestion =
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words.\n\nThe following are given documents.\n\n{0}\n\nAnswer the question based on "
    "the given documents. Only give me the answer and do not output any other words.\n\nQuestion: "
    "{1} Answer:";

// The documents of a question and others, first those of the same article; where more are wanted
// than there are, all of them again and again, as published.
std::vector<size_t> chosen_documents(const RulerQuestions& data,
                                     const RulerQuestion& question,
                                     PythonRandom& random,
                                     size_t wanted) {
  std::vector<size_t> chosen;
  if (wanted >= data.documents.size()) {
    for (size_t i = 0; i < wanted; ++i) chosen.push_back(i % data.documents.size());
    return chosen;
  }
  chosen = question.documents;
  std::vector<size_t> others(data.documents.size());
  std::iota(others.begin(), others.end(), size_t{0});
  std::vector<size_t> nearby = question.nearby;
  for (std::vector<size_t>* documents : {&nearby, &others}) {
    shuffle(*documents, random);
    for (const size_t document : *documents) {
      if (chosen.size() >= wanted) return chosen;
      if (std::find(chosen.begin(), chosen.end(), document) == chosen.end()) {
        chosen.push_back(document);
      }
    }
  }
  return chosen;
}

// The index of a document, which is added where it is new.
class Documents {
 public:
  explicit Documents(std::vector<std::string>& list) : list_(list) {}
  size_t index_of(const std::string& text) {
    const auto [found, added] = indices_.emplace(text, list_.size());
    if (added) list_.push_back(text);
    return found->second;
  }

 private:
  std::vector<std::string>& list_;
  std::map<std::string, size_t> indices_;
};

// An entry that its file's format allows and that asks nothing.
struct Malformed {};

// A question or an answer: not empty, as any answer of a model contains an empty one.
std::string text_of(const nlohmann::json& value) {
  std::string text = value.get<std::string>();
  if (is_blank(text)) throw Malformed();
  return text;
}

// Adds one entry after the other. A malformed one is an error that names its place and what it
// lacks, or is left out.
// Returns how many were.
int64_t add_entries(const nlohmann::json& list,
                    std::string_view lacks,
                    const std::filesystem::path& path,
                    bool skip_bad,
                    const std::function<void(const nlohmann::json&)>& add) {
  int64_t skipped = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    try {
      add(list[i]);
      continue;
    } catch (const nlohmann::json::exception&) {
    } catch (const Malformed&) {
    }
    if (!skip_bad) {
      throw Error(fmt::format("ruler: {}: entry {} {}; --skip-bad leaves such entries out",
                              path.string(),
                              i + 1,
                              lacks));
    }
    ++skipped;
  }
  return skipped;
}

RulerQuestions checked(RulerQuestions data, const std::filesystem::path& path) {
  if (data.questions.empty()) {
    throw Error(fmt::format("ruler: {} has no question with an answer", path.string()));
  }
  return data;
}

}  // namespace

RulerQuestions read_squad(const std::filesystem::path& path, bool skip_bad) {
  const nlohmann::json json = read_json_file(path, "ruler", kWhereToGetSquad);
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array()) {
    throw Error(fmt::format("ruler: {} is not a SQuAD file: no list \"data\"", path.string()));
  }
  RulerQuestions data;
  Documents documents(data.documents);
  const auto add = [&](const nlohmann::json& article) {
    std::vector<RulerQuestion> questions;
    std::vector<size_t> all;
    for (const nlohmann::json& paragraph : article.at("paragraphs")) {
      const size_t document = documents.index_of(paragraph.at("context").get<std::string>());
      all.push_back(document);
      for (const nlohmann::json& entry : paragraph.at("qas")) {
        RulerQuestion question{text_of(entry.at("question")), {}, {document}, {}};
        for (const nlohmann::json& answer : entry.at("answers")) {
          question.answers.push_back(text_of(answer.at("text")));
        }
        // SQuAD 2 has questions without an answer, which are left out as published.
        if (!question.answers.empty()) questions.push_back(std::move(question));
      }
    }
    for (RulerQuestion& question : questions) {
      std::copy_if(
          all.begin(), all.end(), std::back_inserter(question.nearby), [&](size_t document) {
            return document != question.documents.front();
          });
      data.questions.push_back(std::move(question));
    }
  };
  data.skipped = add_entries(json["data"],
                             "of \"data\" is no article of SQuAD: \"paragraphs\" with \"context\", "
                             "\"qas\" of \"question\" "
                             "and \"answers\", none of them empty",
                             path,
                             skip_bad,
                             add);
  return checked(std::move(data), path);
}

RulerQuestions read_hotpot(const std::filesystem::path& path, bool skip_bad) {
  const nlohmann::json json = read_json_file(path, "ruler", kWhereToGetHotpot);
  if (!json.is_array()) {
    throw Error(fmt::format("ruler: {} is not a HotpotQA file: no list", path.string()));
  }
  RulerQuestions data;
  Documents documents(data.documents);
  const auto add = [&](const nlohmann::json& entry) {
    RulerQuestion question{text_of(entry.at("question")), {text_of(entry.at("answer"))}, {}, {}};
    for (const nlohmann::json& document : entry.at("context")) {
      std::string text = document.at(0).get<std::string>() + "\n";
      for (const nlohmann::json& sentence : document.at(1)) text += sentence.get<std::string>();
      question.documents.push_back(documents.index_of(text));
    }
    if (question.documents.empty()) throw Malformed();
    data.questions.push_back(std::move(question));
  };
  data.skipped =
      add_entries(json,
                  "is none of HotpotQA: \"question\", \"answer\", \"context\" of titles with their "
                  "sentences, none of them empty",
                  path,
                  skip_bad,
                  add);
  return checked(std::move(data), path);
}

RulerSample ruler_question(const RulerQuestions& data,
                           PythonRandom& random,
                           int64_t size,
                           int64_t index) {
  const RulerQuestion& question = data.questions[index % data.questions.size()];
  std::vector<size_t> chosen =
      chosen_documents(data, question, random, static_cast<size_t>(std::max<int64_t>(size, 1)));
  shuffle(chosen, random);
  std::string context;
  for (size_t i = 0; i < chosen.size(); ++i) {
    context += fmt::format("{}Document {}:\n{}", i ? "\n\n" : "", i + 1, data.documents[chosen[i]]);
  }
  return {fmt::format(fmt::runtime(kQuestion), context, question.question), question.answers};
}

}  // namespace reynard::evaluation
