// The forgetting curve as a task: for every length and repeat one sequence that copies and one that
// cannot (forgetting_curve.h).

#include "reynard/evaluation/forgetting_curve.h"
#include "reynard/evaluation/tasks/tasks.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace reynard::evaluation {

namespace {

nlohmann::json json_of(const MemoryLength& length) {
  return {{"length", length.length}, {"open", length.open}, {"text", to_string(length)}};
}

nlohmann::json json_of(const std::optional<int64_t>& token) {
  return token ? nlohmann::json(*token) : nlohmann::json();
}

class ForgettingCurve final : public Task {
 public:
  ForgettingCurve(const Corpus& corpus, ForgettingCurveConfig config)
      : corpus_(corpus),
        config_(config),
        lengths_(target_lengths(config.grid, config.length, config.points)),
        begins_(target_begins(
            lengths_, config.repeats, corpus.num_tokens, static_cast<uint64_t>(config.seed))) {}

  std::string name() const override { return "forgetting_curve"; }

  nlohmann::json settings() const override {
    return {{"length", config_.length},
            {"grid", config::name_of(config_.grid)},
            {"points", config_.points},
            {"repeats", config_.repeats},
            {"seed", config_.seed},
            {"bos", json_of(corpus_.bos)},
            {"eos", json_of(corpus_.eos)},
            {"tokens", corpus_.num_tokens}};
  }

  Requests requests() override {
    const auto size = static_cast<int64_t>(lengths_.size()) * config_.repeats * 2;
    return {size, [this](int64_t i) { return request(i / 2, i % 2 == 0); }};
  }

  nlohmann::json sample(const Request& request, const Response& response) override {
    int64_t hits = 0;
    const Scored& scored = std::get<Scored>(response);
    for (const uint8_t hit : scored.hits) hits += hit;
    nlohmann::json line = request.about;
    line["hits"] = hits;
    line["scored"] = scored.hits.size();
    return line;
  }

  Measured measure(const Samples& samples) override;
  bool measures_part() const override { return true; }

 private:
  Request request(int64_t pair, bool copy) const {
    const int64_t which = pair / config_.repeats;
    const int64_t repeat = pair % config_.repeats;
    const int64_t length = lengths_[which];
    const int64_t begin = begins_[which][repeat];
    const std::vector<int64_t> target = corpus_.read(begin, begin + length);
    // The irrelevant text is the end of the corpus, the same for all repeats.
    const std::vector<int64_t> prefix =
        copy ? target : corpus_.read(corpus_.num_tokens - length, corpus_.num_tokens);
    const CurveSequence sequence = curve_sequence(prefix, target, corpus_.bos, corpus_.eos);
    // What follows the scored tokens (EOS) cannot change their scores and is not computed.
    const auto first = sequence.tokens.begin();
    Score score{{first, first + sequence.scored_begin},
                {first + sequence.scored_begin, first + sequence.scored_end},
                {}};
    const char* setting = copy ? "copy" : "lm";
    return {fmt::format("{} {} {}", setting, length, repeat),
            {{"setting", setting}, {"length", length}, {"repeat", repeat}, {"begin", begin}},
            std::move(score)};
  }

  const Corpus& corpus_;
  ForgettingCurveConfig config_;
  std::vector<int64_t> lengths_;
  std::vector<std::vector<int64_t>> begins_;
};

Measured ForgettingCurve::measure(const Samples& samples) {
  struct Accuracies {
    std::vector<double> lm, copy;
    int64_t samples = 0;
  };
  std::map<int64_t, Accuracies> by_length;
  for (const int64_t length : lengths_) {
    by_length[length].lm.resize(config_.repeats);
    by_length[length].copy.resize(config_.repeats);
  }
  samples.for_each([&](const nlohmann::json& line) {
    Accuracies& at = by_length.at(line.at("length").get<int64_t>());
    std::vector<double>& list = line.at("setting") == "copy" ? at.copy : at.lm;
    ++at.samples;
    // As f32, like the published results.
    list.at(line.at("repeat").get<size_t>()) =
        line.at("hits").get<float>() / line.at("scored").get<float>();
  });
  std::vector<CurvePoint> points;
  for (auto& [length, at] : by_length) {
    if (at.samples < 2 * config_.repeats) continue;  // out of memory: the curve ends before it
    points.push_back(curve_point(length, std::move(at.lm), std::move(at.copy)));
  }
  compare_over_lengths(points);

  Measured result;
  const MemoryLengths lengths = memory_lengths(points);
  bool copies = false;
  nlohmann::json list = nlohmann::json::array();
  for (const CurvePoint& point : points) {
    copies = copies || point.differs;
    list.push_back(to_json(point));
  }
  result.metrics["fine_length"] = json_of(lengths.fine);
  result.metrics["coarse_length"] = json_of(lengths.coarse);
  result.metrics["significant_length"] = json_of(lengths.significant);
  result.metrics["copies"] = copies;
  result.metrics["bos"] = json_of(corpus_.bos);
  result.metrics["eos"] = json_of(corpus_.eos);
  result.series["points"] = std::move(list);
  return result;
}

}  // namespace

std::unique_ptr<Task> make_forgetting_curve(const Corpus& corpus,
                                            const EvaluationConfig& config,
                                            const ModelFacts& model) {
  ForgettingCurveConfig settings = config.forgetting_curve;
  if (settings.length == 0) settings.length = model.train_length ? model.train_length : 1024;
  return std::make_unique<ForgettingCurve>(corpus, settings);
}

}  // namespace reynard::evaluation
