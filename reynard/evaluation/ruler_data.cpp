// RULER's question data: the published development sets of SQuAD and HotpotQA.

#include "reynard/evaluation/ruler.h"

#include "reynard/evaluation/json_file.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace reynard::evaluation {

namespace {

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
    } catch (const nlohmann::json::exception&) {
      if (skip_bad && ++skipped > 0) continue;
      throw Error(fmt::format("ruler: {}: entry {} {}; --skip-bad leaves such entries out",
                              path.string(),
                              i + 1,
                              lacks));
    }
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
    for (const nlohmann::json& paragraph : article.at("paragraphs")) {
      const size_t document = documents.index_of(paragraph.at("context").get<std::string>());
      for (const nlohmann::json& entry : paragraph.at("qas")) {
        RulerQuestion question{entry.at("question").get<std::string>(), {}, {document}};
        for (const nlohmann::json& answer : entry.at("answers")) {
          question.answers.push_back(answer.at("text").get<std::string>());
        }
        // SQuAD 2 has questions without an answer, which are left out as published.
        if (!question.answers.empty()) questions.push_back(std::move(question));
      }
    }
    std::move(questions.begin(), questions.end(), std::back_inserter(data.questions));
  };
  data.skipped = add_entries(json["data"],
                             "of \"data\" is no article of SQuAD: \"paragraphs\" with \"context\", "
                             "\"qas\" of \"question\" "
                             "and \"answers\"",
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
    RulerQuestion question{
        entry.at("question").get<std::string>(), {entry.at("answer").get<std::string>()}, {}};
    for (const nlohmann::json& document : entry.at("context")) {
      std::string text = document.at(0).get<std::string>() + "\n";
      for (const nlohmann::json& sentence : document.at(1)) text += sentence.get<std::string>();
      question.documents.push_back(documents.index_of(text));
    }
    data.questions.push_back(std::move(question));
  };
  data.skipped = add_entries(
      json,
      "is none of HotpotQA: \"question\", \"answer\", \"context\" of titles with their sentences",
      path,
      skip_bad,
      add);
  return checked(std::move(data), path);
}

}  // namespace reynard::evaluation
