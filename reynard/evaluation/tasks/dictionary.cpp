// Dictionary lookup as a task: accuracy of looked-up values by the size of the dictionary.

#include "reynard/evaluation/dictionary.h"

#include "reynard/evaluation/prompt_task.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace reynard::evaluation {

namespace {

class DictionaryTask final : public Task {
 public:
  DictionaryTask(const Corpus& corpus, DictionaryConfig config, int64_t local_context)
      : bos_(corpus.bos), local_context_(local_context), config_(std::move(config)) {}

  // Settings that the model's vocabulary or the smallest dictionary does not fit are an error
  // before anything runs. vocab_size: of the model; 0: unknown.
  void check(int64_t vocab_size) const {
    if (vocab_size > 0 && config_.first_token > vocab_size - config_.vocabulary) {
      throw Error(fmt::format(
          "eval: --dictionary.first_token={} --dictionary.vocabulary={}; expected a sum "
          "of at most {}, the size of the model's vocabulary",
          config_.first_token,
          config_.vocabulary,
          vocab_size));
    }
    const DictionarySize smallest = size_of(config_.lengths.front());
    tensor::check_value(
        smallest.records(smallest.definition_tokens) >= 1,
        "dictionary",
        "--dictionary.lengths",
        config_.lengths.front(),
        fmt::format(">= {}: one definition has so many tokens", smallest.lead + kRecordTokens));
    PythonRandom random(0);
    make_dictionary(random, {config_.first_token, config_.vocabulary}, smallest);
  }

  std::string name() const override { return "dictionary"; }

  nlohmann::json settings() const override {
    nlohmann::json settings = {{"lengths", config_.lengths},
                               {"query_tokens", config_.query_tokens},
                               {"block", config_.block},
                               {"repeats", config_.repeats},
                               {"seed", config_.seed},
                               {"first_token", config_.first_token},
                               {"vocabulary", config_.vocabulary},
                               {"bos", bos_ ? nlohmann::json(*bos_) : nlohmann::json()}};
    if (leads()) settings["bos_per_block"] = true;
    return settings;
  }

  Requests requests() override {
    return {static_cast<int64_t>(config_.lengths.size()) * config_.repeats, [this](int64_t i) {
              const int64_t length = config_.lengths[i / config_.repeats];
              PythonRandom random = sample_random(config_.seed, i);
              Dictionary dictionary = make_dictionary(
                  random, {config_.first_token, config_.vocabulary}, size_of(length));
              Score score;
              score.context = std::move(dictionary.definitions);
              put_bos(score.context);
              score.continuation = std::move(dictionary.queries);
              return Request{fmt::format("{} {}", length, i % config_.repeats),
                             {{"length", length}, {"repeat", i % config_.repeats}},
                             std::move(score)};
            }};
  }

  // A value is right when all its tokens are, each predicted after the true ones before it.
  nlohmann::json sample(const Request& request, const Response& response) override {
    const std::vector<uint8_t>& hits = std::get<Scored>(response).hits;
    const DictionarySize size = size_of(request.about.at("length"));
    const int64_t records = size.records(size.query_tokens);
    int64_t right = 0;
    int64_t tokens = 0;
    for (int64_t r = 0; r < records; ++r) {
      const auto value = hits.begin() + size.record_begin(r) + kRecordTokens - kKeyTokens;
      const auto correct = std::count(value, value + kKeyTokens, uint8_t{1});
      tokens += correct;
      right += correct == kKeyTokens ? 1 : 0;
    }
    nlohmann::json line = request.about;
    line["queries"] = records;
    line["right"] = right;
    line["score"] = static_cast<double>(right) / static_cast<double>(records);
    line["token_accuracy"] =
        static_cast<double>(tokens) / static_cast<double>(records * kKeyTokens);
    return line;
  }

  Measured measure(const Samples& samples) override {
    Measured result = average_scores(samples, {"length"});
    struct Range {
      double low = 1, high = 0, tokens = 0;
    };
    std::map<int64_t, Range> ranges;
    samples.for_each([&](const nlohmann::json& line) {
      Range& range = ranges[line.at("length").get<int64_t>()];
      range.low = std::min(range.low, line.at("score").get<double>());
      range.high = std::max(range.high, line.at("score").get<double>());
      range.tokens += line.at("token_accuracy").get<double>();
    });
    for (nlohmann::json& group : result.series.at("groups")) {
      const Range& range = ranges.at(group.at("length").get<int64_t>());
      group["low"] = range.low;
      group["high"] = range.high;
      group["token_accuracy"] = range.tokens / group.at("samples").get<double>();
    }
    return result;
  }
  bool measures_part() const override { return true; }

 private:
  // Whether blocks are the contexts that a memory is made of, read alone. Those of training begin
  // with BOS, as each of its rows does: without one, whole blocks are read otherwise.
  bool leads() const {
    return bos_.has_value() && config_.block > 0 && config_.block == local_context_;
  }
  void put_bos(std::vector<int64_t>& definitions) const {
    if (!bos_) return;
    if (!leads()) definitions.insert(definitions.begin(), *bos_);
    for (size_t at = 0; leads() && at < definitions.size(); at += config_.block) {
      definitions[at] = *bos_;
    }
  }
  DictionarySize size_of(int64_t length) const {
    return {.definition_tokens = length,
            .query_tokens = config_.query_tokens,
            .block = config_.block,
            .lead = leads() ? 1 : 0};
  }

  std::optional<int64_t> bos_;
  int64_t local_context_;
  DictionaryConfig config_;
};

}  // namespace

std::unique_ptr<Task> make_dictionary_task(const Corpus& corpus,
                                           const EvaluationConfig& config,
                                           const ModelFacts& model) {
  DictionaryConfig settings = config.dictionary;
  if (settings.lengths.empty()) {
    const int64_t trained = model.train_length ? model.train_length : 512;
    for (int64_t length = 256; length <= std::max<int64_t>(4 * trained, 256); length *= 4) {
      settings.lengths.push_back(length);
    }
  }
  settings.lengths = ascending(settings.lengths);
  auto task = std::make_unique<DictionaryTask>(corpus, settings, model.local_context);
  task->check(model.vocab_size);
  return task;
}

}  // namespace reynard::evaluation
