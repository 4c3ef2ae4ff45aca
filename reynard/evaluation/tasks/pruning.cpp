// What pruning does to a model: its loss with and without on the same rows and weights, and the
// share of attention tiles that it skips.

#include "reynard/config/json_file.h"
#include "reynard/evaluation/rows.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr double kUsualLogTolerance = -10;

// "scoring" of models with a memory. 1: layers that read it have no share, where they had one of 0.
constexpr int64_t kPruningScoring = 1;

double mean_loss(const Scored& scored) {
  double sum = 0;
  int64_t count = 0;
  for (const float x : scored.logprobs) {
    if (std::isnan(x)) continue;
    sum -= x;
    ++count;
  }
  return sum / static_cast<double>(count);
}

// Each row is asked for three times: looked into, scored with pruning and scored without.
class Pruning final : public Task {
 public:
  Pruning(const Corpus& corpus, PruningConfig config, bool has_memory)
      : corpus_(corpus),
        config_(config),
        has_memory_(has_memory),
        rows_(cut_rows(corpus, {config.length, config.rows, config.seed, false}, "pruning")) {}

  std::string name() const override { return "pruning"; }

  nlohmann::json settings() const override {
    nlohmann::json settings{{"length", config_.length},
                            {"rows", rows_.size()},
                            {"seed", config_.seed},
                            {"log_tolerance", config_.log_tolerance},
                            {"bos", corpus_.bos ? nlohmann::json(*corpus_.bos) : nlohmann::json()}};
    if (has_memory_) settings["scoring"] = kPruningScoring;
    return settings;
  }

  Requests requests() override {
    return {static_cast<int64_t>(rows_.size()) * 3, [this](int64_t i) {
              const Row& row = rows_[i / 3];
              std::vector<int64_t> tokens = corpus_.read(row.begin, row.begin + config_.length);
              static constexpr std::array<const char*, 3> kKinds{"share", "pruned", "unpruned"};
              const char* kind = kKinds[i % 3];
              Request request{fmt::format("{} {}", kind, row.begin),
                              {{"kind", kind}, {"begin", row.begin}},
                              {}};
              if (i % 3 == 0) {
                request.query = Probe{std::move(tokens), config_.log_tolerance};
                return request;
              }
              Score score;
              if (corpus_.bos) score.context = {*corpus_.bos};
              score.continuation = std::move(tokens);
              score.log_pruning_tolerance = i % 3 == 1 ? config_.log_tolerance : 0;
              request.query = std::move(score);
              return request;
            }};
  }

  nlohmann::json sample(const Request& request, const Response& response) override {
    nlohmann::json line = request.about;
    if (const auto* scored = std::get_if<Scored>(&response)) {
      line["loss"] = mean_loss(*scored);
      return line;
    }
    line["layers"] = nlohmann::json::array();
    for (const models::AttentionView& view : std::get<Probed>(response).layers) {
      nlohmann::json shares = nlohmann::json::array();
      for (const double share : models::pruned_tiles(view)) {
        shares.push_back(config::number_or_null(share));
      }
      line["layers"].push_back(std::move(shares));
    }
    return line;
  }

  Measured measure(const Samples& samples) override {
    std::map<int64_t, std::array<double, 2>> losses;  // by row: pruned, unpruned
    std::vector<std::vector<double>> shares;  // by layer and head: sum over rows; NaN: not known
    samples.for_each([&](const nlohmann::json& line) {
      const auto kind = line.at("kind").get<std::string>();
      if (kind == "share") {
        add_shares(line.at("layers"), shares);
      } else {
        losses[line.at("begin").get<int64_t>()][kind == "pruned" ? 0 : 1] =
            line.at("loss").get<double>();
      }
    });
    return summary(losses, shares);
  }

 private:
  static void add_shares(const nlohmann::json& layers, std::vector<std::vector<double>>& shares) {
    shares.resize(layers.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      shares[l].resize(layers[l].size());
      for (size_t h = 0; h < layers[l].size(); ++h) {
        const nlohmann::json& share = layers[l][h];
        shares[l][h] += share.is_null() ? std::nan("") : share.get<double>();
      }
    }
  }

  Measured summary(const std::map<int64_t, std::array<double, 2>>& losses,
                   const std::vector<std::vector<double>>& shares) const {
    std::vector<double> pruned;
    std::vector<double> unpruned;
    std::vector<double> difference;
    for (const auto& [begin, loss] : losses) {
      pruned.push_back(loss[0]);
      unpruned.push_back(loss[1]);
      difference.push_back(loss[0] - loss[1]);
    }
    std::vector<double> known;
    nlohmann::json means = nlohmann::json::array();
    for (const std::vector<double>& layer : shares) {
      means.push_back(nlohmann::json::array());
      for (const double sum : layer) {
        const double share = sum / static_cast<double>(rows_.size());
        means.back().push_back(config::number_or_null(share));
        if (!std::isnan(share)) known.push_back(share);
      }
    }
    Measured result;
    result.metrics["loss_pruned"] = statistics::moments(pruned).mean;
    result.metrics["loss_unpruned"] = statistics::moments(unpruned).mean;
    result.metrics["loss_difference"] = statistics::moments(difference).mean;
    result.metrics["standard_error"] =
        config::number_or_null(statistics::standard_error(difference));
    result.metrics["pruned_share"] =
        known.empty() ? nlohmann::json() : nlohmann::json(statistics::moments(known).mean);
    result.metrics["log_tolerance"] = config_.log_tolerance;
    result.metrics["rows"] = rows_.size();
    result.series["pruned_share"] = means;
    return result;
  }

  const Corpus& corpus_;
  PruningConfig config_;
  bool has_memory_;
  std::vector<Row> rows_;
};

}  // namespace

std::unique_ptr<Task> make_pruning(const Corpus& corpus,
                                   const EvaluationConfig& config,
                                   const ModelFacts& model) {
  if (!model.forgets) {
    throw Error(
        "eval: task pruning needs a model with forget gates that runs here (no --endpoint or "
        "--adapter); leave it out of --task");
  }
  PruningConfig settings = config.pruning;
  if (settings.length == 0) settings.length = model.train_length ? model.train_length : 1024;
  if (settings.log_tolerance == 0) {
    settings.log_tolerance =
        model.log_pruning_tolerance < 0 ? model.log_pruning_tolerance : kUsualLogTolerance;
  }
  return std::make_unique<Pruning>(corpus, settings, !model.memory_layers.empty());
}

}  // namespace reynard::evaluation
