// Text that the model writes after a held-out beginning: once with the most probable token each
// time, once sampled.

#include "reynard/evaluation/rows.h"
#include "reynard/evaluation/tasks/tasks.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::evaluation {

namespace {

class TextSample final : public Task {
 public:
  TextSample(const Corpus& corpus, TextSampleConfig config)
      : corpus_(corpus), config_(config), row_(find_row(corpus, config)) {}

  std::string name() const override { return "text_sample"; }

  nlohmann::json settings() const override {
    return {{"prompt", config_.prompt},
            {"tokens", config_.tokens},
            {"temperature", config_.temperature},
            {"seed", config_.seed},
            {"begin", row_.begin}};
  }

  Requests requests() override {
    return {2, [this](int64_t i) {
              const double temperature = i == 0 ? 0 : config_.temperature;
              Generate query;
              if (corpus_.bos) query.prompt.push_back(*corpus_.bos);
              const std::vector<int64_t> prompt = prompt_tokens();
              query.prompt.insert(query.prompt.end(), prompt.begin(), prompt.end());
              query.max_tokens = config_.tokens;
              query.temperature = temperature;
              query.seed = static_cast<uint64_t>(config_.seed);
              if (corpus_.eos) query.stop = {*corpus_.eos};
              return Request{fmt::format("temperature {}", temperature),
                             {{"temperature", temperature}},
                             std::move(query)};
            }};
  }

  nlohmann::json sample(const Request& request, const Response& response) override {
    nlohmann::json line = request.about;
    line["prompt"] = corpus_.decode(prompt_tokens());
    line["text"] = corpus_.decode(std::get<Generated>(response).tokens);
    return line;
  }

  Measured measure(const Samples& samples) override {
    Measured result;
    result.series["samples"] = nlohmann::json::array();
    samples.for_each([&](const nlohmann::json& line) { result.series["samples"].push_back(line); });
    const int64_t end = row_.begin + config_.prompt;
    result.series["truth"] = corpus_.decode(corpus_.read(end, end + config_.tokens));
    return result;
  }

 private:
  static Row find_row(const Corpus& corpus, const TextSampleConfig& config) {
    // Of all places with room for prompt and continuation, the one in the middle.
    const RowOptions options{config.prompt + config.tokens, corpus.num_tokens, config.seed, false};
    const std::vector<Row> rows = cut_rows(corpus, options, "text_sample");
    return rows[rows.size() / 2];
  }

  std::vector<int64_t> prompt_tokens() const {
    return corpus_.read(row_.begin, row_.begin + config_.prompt);
  }

  const Corpus& corpus_;
  TextSampleConfig config_;
  Row row_;
};

}  // namespace

std::unique_ptr<Task> make_text_sample(const Corpus& corpus,
                                       const EvaluationConfig& config,
                                       const ModelFacts& /*model*/) {
  return std::make_unique<TextSample>(corpus, config.text_sample);
}

}  // namespace reynard::evaluation
