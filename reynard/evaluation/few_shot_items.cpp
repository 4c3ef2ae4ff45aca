#include "reynard/evaluation/few_shot_items.h"

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/task_files.h"
#include "reynard/tensor/check.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr const char* kWhereToGet =
    "name files with --few_shot.train=FILE and --few_shot.test=FILE: TREC (train_5500.label and "
    "TREC_10.label of https://cogcomp.seas.upenn.edu/Data/QA/QC), WebQuestions "
    "(webquestions.examples.train.json and .test.json of https://nlp.stanford.edu/software/sempre) "
    "or your own with one {\"question\", \"answer\"} per line";

// Collects items; a malformed one is an error that names its place, or is left out.
class Items {
 public:
  Items(std::string path, const FewShotConfig& config)
      : path_(std::move(path)), kind_(config.kind), skip_bad_(config.skip_bad) {}

  void add(FewShotItem item, const std::string& place, std::string_view lacks) {
    // A model that writes nothing would give an empty answer.
    const auto is_nothing = [](const std::string& answer) {
      return compared_answer(answer).empty();
    };
    std::string_view fault;
    if (is_blank(item.question) || item.answers.empty() ||
        std::ranges::any_of(item.answers, is_blank)) {
      fault = lacks;
    } else if (kind_ == FewShotKind::kAnswer && std::ranges::any_of(item.answers, is_nothing)) {
      fault = "has an answer of full stops alone";
    }
    if (fault.empty()) {
      file_.items.push_back(std::move(item));
    } else if (skip_bad_) {
      ++file_.skipped;
    } else {
      throw Error(
          fmt::format("few_shot: {}{} {}; --skip-bad leaves such lines out", path_, place, fault));
    }
  }
  FewShotFile file() && {
    if (file_.items.empty()) throw Error(fmt::format("few_shot: {} has no question", path_));
    return std::move(file_);
  }

 private:
  std::string path_;
  FewShotKind kind_;
  bool skip_bad_;
  FewShotFile file_;
};

// TREC's files are in Latin-1.
std::string utf8_of(const std::string& text) {
  tokenizer::Utf8Validator validator;
  if (validator.feed(text) && validator.finish()) return text;
  std::string utf8;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xC0 | (byte >> 6));
      utf8 += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return utf8;
}

// "DESC:manner How did serfdom develop in and then leave Russia ?"
void read_trec(const std::string& path, Items& items) {
  std::istringstream in(read_task_text(path, "few_shot", kWhereToGet));
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    while (line.ends_with('\r') || line.ends_with(' ')) line.pop_back();
    if (line.empty()) continue;
    const size_t blank = line.find(' ');
    FewShotItem item;
    if (blank != std::string::npos && line.substr(0, blank).find(':') != std::string::npos) {
      item = {utf8_of(line.substr(blank + 1)), {line.substr(0, blank)}};
    }
    items.add(std::move(item), fmt::format(":{}", number), "is no \"CLASS:kind question\"");
  }
}

// The texts of (list (description "Jazmyn Bieber") (description Jaxon)). A quote ends one where a
// parenthesis follows: the published file has quotes inside quotes, not all of them escaped.
std::vector<std::string> descriptions_of(const std::string& value) {
  static constexpr std::string_view kBegin = "(description ";
  std::vector<std::string> texts;
  for (size_t at = value.find(kBegin); at != std::string::npos; at = value.find(kBegin, at)) {
    at += kBegin.size();
    const bool quoted = at < value.size() && value[at] == '"';
    const auto ends = [&] { return quoted ? value.compare(at, 2, "\")") == 0 : value[at] == ')'; };
    std::string text;
    for (at += quoted ? 1 : 0; at < value.size() && !ends(); ++at) {
      if (quoted && value[at] == '\\' && at + 1 < value.size()) ++at;
      text += value[at];
    }
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

void read_webquestions(const std::string& path, Items& items) {
  const nlohmann::json entries = read_json_file(path, "few_shot", kWhereToGet);
  if (!entries.is_array()) {
    throw Error(fmt::format("few_shot: {} is no file of WebQuestions: no list", path));
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const nlohmann::json& entry = entries[i];
    FewShotItem item;
    if (entry.is_object() && entry.contains("utterance") && entry["utterance"].is_string() &&
        entry.contains("targetValue") && entry["targetValue"].is_string()) {
      item = {entry["utterance"], descriptions_of(entry["targetValue"])};
    }
    items.add(std::move(item),
              fmt::format(": entry {}", i + 1),
              "has no text \"utterance\" and descriptions in \"targetValue\"");
  }
}

void read_lines(const JsonLines& file, Items& items) {
  for (size_t i = 0; i < file.lines.size(); ++i) {
    const nlohmann::json& line = file.lines[i];
    FewShotItem item;
    if (line.contains("question") && line["question"].is_string()) item.question = line["question"];
    if (line.contains("answer") && line["answer"].is_string()) item.answers = {line["answer"]};
    const auto answers = line.find("answers");
    if (answers != line.end() && answers->is_array()) {
      for (const nlohmann::json& answer : *answers) {
        if (answer.is_string()) item.answers.push_back(answer);
      }
    }
    items.add(std::move(item),
              fmt::format(":{}", file.numbers[i]),
              "has no text \"question\" and \"answer\"");
  }
}

}  // namespace

std::string compared_answer(std::string_view answer) {
  std::string text = lower_case(answer);
  text.erase(0, std::min(text.find_first_not_of(" \t"), text.size()));
  while (text.ends_with(' ') || text.ends_with('.')) text.pop_back();
  return text;
}

FewShotFile read_few_shot(const std::string& path,
                          std::string_view key,
                          const FewShotConfig& config) {
  if (path.empty()) throw Error(fmt::format("few_shot: no --few_shot.{}; {}", key, kWhereToGet));
  Items items(path, config);
  if (path.ends_with(".label")) {
    read_trec(path, items);
  } else if (path.ends_with(".json")) {
    read_webquestions(path, items);
  } else {
    const JsonLines file = read_json_lines(path, "few_shot", config.skip_bad, kWhereToGet);
    read_lines(file, items);
    FewShotFile read = std::move(items).file();
    read.skipped += file.skipped;
    return read;
  }
  return std::move(items).file();
}

}  // namespace reynard::evaluation
