#include "reynard/evaluation/prompt_task.h"

#include "reynard/config/json_file.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"
#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <set>
#include <utility>

namespace reynard::evaluation {

namespace {

class PromptTask final : public Task {
 public:
  PromptTask(const Corpus& corpus, PromptSet set)
      : corpus_(corpus), set_(std::move(set)), stop_(stop_tokens(corpus)) {
    if (set_.first_line) line_ends_ = line_ends(corpus);
  }

  std::string name() const override { return set_.name; }
  nlohmann::json settings() const override { return set_.settings; }

  Requests requests() override {
    return {set_.size, [this](int64_t i) {
              Prompt prompt = set_.at(i);
              nlohmann::json about = std::move(prompt.about);
              about["answers"] = std::move(prompt.answers);
              about["prompt_tokens"] = prompt.tokens.size();
              Generate query;
              query.prompt = std::move(prompt.tokens);
              query.max_tokens = prompt.max_tokens;
              query.stop = stop_;
              query.stop_after_text = line_ends_;
              return Request{std::move(prompt.id), std::move(about), std::move(query)};
            }};
  }

  nlohmann::json sample(const Request& request, const Response& response) override {
    std::string written = corpus_.decode(std::get<Generated>(response).tokens);
    nlohmann::json line = request.about;
    line["score"] = set_.score(set_.first_line ? first_line_of(written) : written, line);
    if (set_.rate) line.update(set_.rate(written));
    line["answer"] = std::move(written);
    return line;
  }

  Measured measure(const Samples& samples) override {
    Measured result = average_scores(samples, set_.group_by);
    if (set_.finish) set_.finish(result);
    return result;
  }
  bool measures_part() const override { return true; }

 private:
  const Corpus& corpus_;
  PromptSet set_;
  std::vector<int64_t> stop_, line_ends_;
};

// Scores of one group of samples, and ratings where there are any.
struct Scores {
  std::vector<double> scores, ratings;

  void add(const nlohmann::json& line) {
    scores.push_back(line.at("score").get<double>());
    const auto rating = line.find("rating");
    if (rating != line.end() && rating->is_number()) ratings.push_back(rating->get<double>());
  }
};

nlohmann::json mean_json(const std::vector<double>& scores) {
  return {{"score", statistics::moments(scores).mean},
          {"standard_error", config::number_or_null(statistics::standard_error(scores))},
          {"samples", scores.size()}};
}

nlohmann::json mean_json(const Scores& all) {
  nlohmann::json means = mean_json(all.scores);
  if (!all.ratings.empty()) {
    means["rating"] = statistics::moments(all.ratings).mean;
    means["rated"] = all.ratings.size();
  }
  return means;
}

}  // namespace

std::unique_ptr<Task> make_prompt_task(const Corpus& corpus, PromptSet set) {
  return std::make_unique<PromptTask>(corpus, std::move(set));
}

Measured average_scores(const Samples& samples, const std::vector<std::string>& group_by) {
  std::vector<std::pair<nlohmann::json, Scores>> groups;
  Scores all;
  samples.for_each([&](const nlohmann::json& line) {
    nlohmann::json key = nlohmann::json::object();
    for (const std::string& name : group_by) key[name] = line.at(name);
    auto group = std::find_if(
        groups.begin(), groups.end(), [&](const auto& other) { return other.first == key; });
    if (group == groups.end()) {
      groups.emplace_back(std::move(key), Scores());
      group = groups.end() - 1;
    }
    group->second.add(line);
    all.add(line);
  });
  Measured result;
  result.metrics = mean_json(all);
  result.series["groups"] = nlohmann::json::array();
  for (auto& [key, scores] : groups) {
    nlohmann::json group = mean_json(scores);
    group.update(key);
    result.series["groups"].push_back(std::move(group));
  }
  return result;
}

Haystack::Haystack(const Corpus& corpus, std::string_view task) : corpus_(corpus) {
  int64_t total = 0;
  for (const Document& document : corpus.documents) {
    total += document.end - document.begin;
    ends_.push_back(total);
  }
  tensor::check_value(total > 0, task, "tokens of text", total, "at least 1");
}

std::vector<int64_t> Haystack::read(int64_t begin, int64_t count) const {
  std::vector<int64_t> tokens;
  int64_t place = begin % num_tokens();
  while (static_cast<int64_t>(tokens.size()) < count) {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), place);
    const Document& document = corpus_.documents[end - ends_.begin()];
    const int64_t left = *end - place;
    const int64_t here = std::min(left, count - static_cast<int64_t>(tokens.size()));
    const std::vector<int64_t> piece =
        corpus_.read(document.end - left, document.end - left + here);
    tokens.insert(tokens.end(), piece.begin(), piece.end());
    place = (place + here) % num_tokens();
  }
  return tokens;
}

std::vector<std::string> each_once(const std::vector<std::string>& names) {
  std::vector<std::string> once;
  for (const std::string& name : names) {
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  }
  return once;
}

std::vector<int64_t> ascending(const std::vector<int64_t>& values) {
  const std::set<int64_t> distinct(values.begin(), values.end());
  return {distinct.begin(), distinct.end()};
}

std::vector<int64_t> test_lengths(const std::vector<int64_t>& asked,
                                  int64_t train_length,
                                  const std::function<bool(int64_t length)>& holds) {
  if (!asked.empty()) return ascending(asked);
  const int64_t trained = train_length > 0 ? train_length : 4096;
  std::vector<int64_t> lengths{trained / 4, trained / 2, trained, 2 * trained, 4 * trained};
  if (holds) std::erase_if(lengths, [&](int64_t length) { return !holds(length); });
  return lengths.empty() ? std::vector<int64_t>{4 * trained} : lengths;
}

Cell cell_of(int64_t request,
             const std::vector<int64_t>& lengths,
             size_t num_tasks,
             int64_t num_samples) {
  const auto row = static_cast<size_t>(request / num_samples);
  return {row % num_tasks, lengths[row / num_tasks], request % num_samples};
}

PythonRandom sample_random(int64_t seed, int64_t sample) {
  return PythonRandom(static_cast<uint64_t>(seed) * 1'000'003 + static_cast<uint64_t>(sample));
}

std::vector<int64_t> stop_tokens(const Corpus& corpus) {
  return corpus.eos ? std::vector<int64_t>{*corpus.eos} : std::vector<int64_t>();
}

std::vector<int64_t> line_ends(const Corpus& corpus) {
  std::set<int64_t> ends;
  for (const char* text : {"\n", "\n\n", "\r", "\r\n"}) {
    for (const int64_t token : inner_tokens(corpus, text)) {
      const std::string its_text = corpus.decode({token});
      if (!its_text.empty() && first_line_of(its_text).empty()) ends.insert(token);
    }
  }
  return {ends.begin(), ends.end()};
}

std::vector<int64_t> inner_tokens(const Corpus& corpus, std::string_view text) {
  const std::string before = "a";
  const std::vector<int64_t> first = corpus.encode(before);
  const std::vector<int64_t> both = corpus.encode(before + std::string(text));
  const auto [end, rest] = std::mismatch(first.begin(), first.end(), both.begin(), both.end());
  if (end != first.end()) return corpus.encode(text);  // joined with what stands before it
  return {rest, both.end()};
}

std::vector<int64_t> prompt_tokens(const Corpus& corpus, std::string_view text) {
  std::vector<int64_t> tokens;
  if (corpus.bos) tokens.push_back(*corpus.bos);
  const std::vector<int64_t> ids = corpus.encode(text);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  return tokens;
}

std::string first_line_of(std::string_view text) {
  const size_t begin = text.find_first_not_of("\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_first_of("\r\n", begin) - begin));
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

std::string lower_case(std::string_view text) {
  std::string lower;
  for (size_t i = 0; i < text.size();) {
    const auto [c, length] = tokenizer::code_point_at(text, i);
    const auto folded = utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
    tokenizer::append_utf8(lower, static_cast<char32_t>(folded));
    i += length;
  }
  return lower;
}

bool contains_folded(std::string_view text, std::string_view part) {
  return lower_case(text).find(lower_case(part)) != std::string::npos;
}

double share_contained(std::string_view text, const nlohmann::json& answers) {
  double found = 0;
  for (const nlohmann::json& answer : answers) {
    found += contains_folded(text, answer.get<std::string>()) ? 1 : 0;
  }
  return answers.empty() ? 0 : found / static_cast<double>(answers.size());
}

}  // namespace reynard::evaluation
