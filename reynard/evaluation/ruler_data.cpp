// RULER's question data: the published development sets of SQuAD and HotpotQA.

#include "reynard/evaluation/ruler.h"

#include "reynard/evaluation/json_file.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

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

RulerQuestions checked(RulerQuestions data, const std::filesystem::path& path) {
  if (data.questions.empty()) {
    throw Error(fmt::format("ruler: {} has no question with an answer", path.string()));
  }
  return data;
}

}  // namespace

RulerQuestions read_squad(const std::filesystem::path& path) {
  const nlohmann::json json = read_json_file(path, "ruler");
  RulerQuestions data;
  Documents documents(data.documents);
  try {
    for (const nlohmann::json& article : json.at("data")) {
      for (const nlohmann::json& paragraph : article.at("paragraphs")) {
        const size_t document = documents.index_of(paragraph.at("context").get<std::string>());
        for (const nlohmann::json& entry : paragraph.at("qas")) {
          RulerQuestion question{entry.at("question").get<std::string>(), {}, {document}};
          for (const nlohmann::json& answer : entry.at("answers")) {
            question.answers.push_back(answer.at("text").get<std::string>());
          }
          // SQuAD 2 has questions without an answer, which are left out as published.
          if (!question.answers.empty()) data.questions.push_back(std::move(question));
        }
      }
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(fmt::format(
        "ruler: {} is not a SQuAD file (data[].paragraphs[].qas[]): {}", path.string(), e.what()));
  }
  return checked(std::move(data), path);
}

RulerQuestions read_hotpot(const std::filesystem::path& path) {
  const nlohmann::json json = read_json_file(path, "ruler");
  RulerQuestions data;
  Documents documents(data.documents);
  try {
    for (const nlohmann::json& entry : json) {
      RulerQuestion question{
          entry.at("question").get<std::string>(), {entry.at("answer").get<std::string>()}, {}};
      for (const nlohmann::json& document : entry.at("context")) {
        std::string text = document.at(0).get<std::string>() + "\n";
        for (const nlohmann::json& sentence : document.at(1)) text += sentence.get<std::string>();
        question.documents.push_back(documents.index_of(text));
      }
      data.questions.push_back(std::move(question));
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(
        fmt::format("ruler: {} is not a HotpotQA file (a list of question, answer, "
                    "context): {}",
                    path.string(),
                    e.what()));
  }
  return checked(std::move(data), path);
}

}  // namespace reynard::evaluation
