// Loss by position, L(i), and the perplexity of the first l tokens, P(l) (FoX, Lin et al. 2025,
// section 4.2): rows of connected text, one teacher-forced pass each, sums in f64.

#include "reynard/config/json_file.h"
#include "reynard/data/random.h"
#include "reynard/evaluation/packed_floats.h"
#include "reynard/evaluation/rows.h"
#include "reynard/evaluation/tasks/tasks.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace reynard::evaluation {

namespace {

// The report smooths L(i) over this many positions; the standard error of that mean needs the rows.
constexpr int64_t kErrorWindow = 101;
constexpr int64_t kShortestReported = 64;
constexpr double kIntervalLevel = 0.05;  // of confidence intervals: 95 %

// Sums over rows of one number per position and of its square.
struct PositionSums {
  std::vector<double> sum, squares;
  std::vector<int64_t> count;

  explicit PositionSums(int64_t length) : sum(length), squares(length), count(length) {}
  void add(int64_t i, double value) {
    sum[i] += value;
    squares[i] += value * value;
    ++count[i];
  }
  double mean(int64_t i) const {
    return count[i] ? sum[i] / static_cast<double>(count[i]) : std::nan("");
  }
  // Standard error of the mean over rows; NaN with fewer than two.
  double standard_error(int64_t i) const {
    const auto n = static_cast<double>(count[i]);
    if (count[i] < 2) return std::nan("");
    const double variance = std::max(0.0, (squares[i] - sum[i] * sum[i] / n) / (n - 1));
    return std::sqrt(variance / n);
  }
};

// Running sums of a row's losses, tokens that are not scored left out.
struct RowSums {
  std::vector<double> loss{0};
  std::vector<int64_t> scored{0};

  explicit RowSums(std::span<const float> losses) {
    for (const float x : losses) {
      const bool counts = !std::isnan(x);
      loss.push_back(loss.back() + (counts ? static_cast<double>(x) : 0));
      scored.push_back(scored.back() + (counts ? 1 : 0));
    }
  }
  // Mean loss of positions [begin, end); NaN when none is scored.
  double mean(int64_t begin, int64_t end) const {
    const int64_t n = scored[end] - scored[begin];
    return n ? (loss[end] - loss[begin]) / static_cast<double>(n) : std::nan("");
  }
};

// Sums over all rows of the three numbers that a position has.
struct LossSums {
  PositionSums at_position;
  PositionSums in_window;  // mean over kErrorWindow positions about it
  PositionSums up_to;      // index l - 1: mean loss of the first l tokens of a row

  explicit LossSums(int64_t length) : at_position(length), in_window(length), up_to(length) {}
  void add(std::span<const float> losses) {
    const RowSums row(losses);
    const auto length = std::ssize(losses);
    for (int64_t i = 0; i < length; ++i) {
      if (!std::isnan(losses[i])) at_position.add(i, losses[i]);
      const int64_t begin = std::max(int64_t{0}, i - kErrorWindow / 2);
      const double near = row.mean(begin, std::min(length, i + kErrorWindow / 2 + 1));
      if (!std::isnan(near)) in_window.add(i, near);
      const double first = row.mean(0, i + 1);
      if (!std::isnan(first)) up_to.add(i, first);
    }
  }
};

// L(i) and P(l) with their errors, and the mean loss of all.
struct LossSeries {
  std::vector<double> loss, error, half_width;     // (T) of L(i)
  std::vector<double> perplexity, log_half_width;  // (T) P(l), and of ln P(l)
  double mean = std::nan("");

  explicit LossSeries(const LossSums& sums) {
    double total = 0;
    int64_t scored = 0;
    int64_t counted = -1;  // rows that `factor` is for
    double factor = 0;
    for (int64_t i = 0; i < std::ssize(sums.at_position.sum); ++i) {
      loss.push_back(sums.at_position.mean(i));
      error.push_back(sums.in_window.standard_error(i));
      // Rows have the same positions: nearly all counts are equal.
      if (sums.in_window.count[i] != counted) {
        counted = sums.in_window.count[i];
        factor = statistics::interval_factor(counted, kIntervalLevel);
      }
      half_width.push_back(factor * error[i]);
      log_half_width.push_back(factor * sums.up_to.standard_error(i));
      total += std::isnan(loss[i]) ? 0 : loss[i];
      scored += std::isnan(loss[i]) ? 0 : 1;
      if (scored > 0) mean = total / static_cast<double>(scored);
      perplexity.push_back(std::exp(mean));
    }
  }
};

// How fast the loss falls with context: the least-squares line of L(i) over log2 i for positions
// from ... to (from 1). Each row has a slope of its own; their mean is that of L(i), and their
// spread its error, however the tokens of a row hang together.
class LossSlope {
 public:
  LossSlope(int64_t from, int64_t to) : from_(from), to_(to) {}

  void add(std::span<const float> losses) {
    double n = 0, sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0;
    for (int64_t i = from_; i <= to_; ++i) {
      const double y = losses[i - 1];
      if (std::isnan(y)) continue;
      const double x = std::log2(static_cast<double>(i));
      n += 1, sum_x += x, sum_y += y, sum_xx += x * x, sum_xy += x * y;
    }
    const double spread = sum_xx - sum_x * sum_x / n;
    if (!(n >= 2) || !(spread > 0)) return;
    slopes_.push_back((sum_xy - sum_x * sum_y / n) / spread);
    level_ += sum_y / n;
    middle_ = sum_x / n;  // the same in every row
  }
  // Slope in nats per doubling of the context, with the line's values at both ends.
  nlohmann::json json() const {
    const statistics::Moments of = statistics::moments(slopes_);
    const auto n = static_cast<double>(slopes_.size());
    const double factor =
        statistics::interval_factor(static_cast<int64_t>(slopes_.size()), kIntervalLevel);
    const auto at = [&](int64_t i) {
      return level_ / n + of.mean * (std::log2(static_cast<double>(i)) - middle_);
    };
    return {{"from", from_},
            {"to", to_},
            {"slope", of.mean},
            {"half_width", config::number_or_null(factor * of.sample_deviation / std::sqrt(n))},
            {"loss_from", at(from_)},
            {"loss_to", at(to_)}};
  }
  bool empty() const { return slopes_.empty(); }

 private:
  int64_t from_, to_;
  std::vector<double> slopes_;
  double level_ = 0, middle_ = 0;
};

nlohmann::json json_of(const std::vector<double>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const double x : values) list.push_back(config::number_or_null(x));
  return list;
}

class PerPositionLoss final : public Task {
 public:
  PerPositionLoss(const Corpus& corpus, PerPositionLossConfig config, int64_t train_length)
      : corpus_(corpus),
        config_(config),
        train_length_(train_length),
        rows_(cut_rows(corpus, options(), name())) {}

  std::string name() const override { return "per_position_loss"; }

  nlohmann::json settings() const override {
    return {{"length", config_.length},
            {"rows", rows_.size()},
            {"seed", config_.seed},
            {"across_documents", config_.across_documents},
            {"rolled", config_.rolled},
            {"bos", corpus_.bos ? nlohmann::json(*corpus_.bos) : nlohmann::json()}};
  }

  Requests requests() override {
    return {static_cast<int64_t>(rows_.size()), [this](int64_t i) {
              const Row& row = rows_[i];
              Score score;
              // The first token is predicted from BOS alone; without a BOS it is not scored.
              if (corpus_.bos) score.context = {*corpus_.bos};
              score.continuation = corpus_.read(row.begin, row.begin + config_.length);
              if (config_.rolled) roll(score.continuation, row);
              return Request{fmt::format("row {}", row.begin),
                             {{"begin", row.begin}, {"document", row.document}},
                             std::move(score)};
            }};
  }

  nlohmann::json sample(const Request& request, const Response& response) override {
    std::vector<float> losses = std::get<Scored>(response).logprobs;
    for (float& x : losses) x = -x;
    nlohmann::json line = request.about;
    line["loss"] = RowSums(losses).mean(0, config_.length);
    line["losses"] = pack_floats(losses);
    return line;
  }

  Measured measure(const Samples& samples) override;

 private:
  RowOptions options() const {
    return {config_.length, config_.rows, config_.seed, config_.across_documents};
  }
  // To the right by a random number of tokens: the end of the row then stands before its beginning.
  void roll(std::vector<int64_t>& tokens, const Row& row) const {
    const uint64_t bits = data::random_bits(static_cast<uint64_t>(config_.seed),
                                            data::hash("per_position_loss"),
                                            static_cast<uint64_t>(row.begin));
    const int64_t shift = data::below(bits, config_.length);
    std::rotate(tokens.begin(), tokens.end() - shift, tokens.end());
  }
  // Those that rows are cut from.
  int64_t num_tokens_of_text() const {
    if (config_.across_documents) return corpus_.num_tokens;
    int64_t tokens = 0;
    for (const Document& document : corpus_.documents) tokens += document.end - document.begin;
    return tokens;
  }
  std::vector<LossSlope> slopes() const;
  std::vector<int64_t> reported_lengths() const {
    std::vector<int64_t> lengths{config_.length};
    while (lengths.back() / 2 >= kShortestReported) lengths.push_back(lengths.back() / 2);
    std::reverse(lengths.begin(), lengths.end());
    return lengths;
  }

  const Corpus& corpus_;
  PerPositionLossConfig config_;
  int64_t train_length_;  // 0: unknown
  std::vector<Row> rows_;
};

// Within the training length and, where rows are long enough, beyond it.
std::vector<LossSlope> PerPositionLoss::slopes() const {
  const int64_t length = config_.length;
  const int64_t within = train_length_ > 0 ? std::min(train_length_, length) : length;
  std::vector<LossSlope> slopes;
  if (within >= 16) slopes.emplace_back(within / 8, within);
  if (2 * length >= 3 * within) slopes.emplace_back(within, length);
  return slopes;
}

Measured PerPositionLoss::measure(const Samples& samples) {
  LossSums sums(config_.length);
  std::vector<LossSlope> fits = slopes();
  samples.for_each([&](const nlohmann::json& line) {
    const std::vector<float> losses = unpack_floats(line.at("losses").get<std::string>());
    if (std::ssize(losses) != config_.length) {
      throw Error(fmt::format(
          "{} losses; expected {}, one for each position", losses.size(), config_.length));
    }
    for (LossSlope& fit : fits) fit.add(losses);
    sums.add(losses);
  });
  const LossSeries series(sums);

  Measured result;
  nlohmann::json at_lengths = nlohmann::json::array();
  for (const int64_t l : reported_lengths()) {
    const double mean = std::log(series.perplexity[l - 1]);
    at_lengths.push_back({{"length", l},
                          {"loss", mean},
                          {"perplexity", series.perplexity[l - 1]},
                          {"standard_error", sums.up_to.standard_error(l - 1)}});
    // The names of the published results file.
    result.metrics[fmt::format("val/loss_avg_len_{}", l)] = mean;
    result.metrics[fmt::format("val/perplexity_len_{}", l)] = series.perplexity[l - 1];
  }
  result.metrics["loss"] = series.mean;
  result.metrics["standard_error"] = sums.up_to.standard_error(config_.length - 1);
  result.metrics["rows"] = samples.size;
  if (corpus_.num_text_bytes > 0) {
    const double tokens_per_byte =
        static_cast<double>(num_tokens_of_text()) / static_cast<double>(corpus_.num_text_bytes);
    result.metrics["bits_per_byte"] = series.mean / std::numbers::ln2 * tokens_per_byte;
  }
  result.metrics["at_lengths"] = std::move(at_lengths);
  result.metrics["slopes"] = nlohmann::json::array();
  for (const LossSlope& fit : fits) {
    if (!fit.empty()) result.metrics["slopes"].push_back(fit.json());
  }
  result.series["loss"] = json_of(series.loss);
  result.series["standard_error"] = json_of(series.error);
  result.series["standard_error_window"] = kErrorWindow;
  result.series["half_width"] = json_of(series.half_width);
  result.series["perplexity"] = json_of(series.perplexity);
  result.series["log_perplexity_half_width"] = json_of(series.log_half_width);
  return result;
}

}  // namespace

std::unique_ptr<Task> make_per_position_loss(const Corpus& corpus,
                                             const EvaluationConfig& config,
                                             const ModelFacts& model) {
  PerPositionLossConfig settings = config.per_position_loss;
  if (settings.length == 0) settings.length = model.train_length ? 2 * model.train_length : 2048;
  return std::make_unique<PerPositionLoss>(corpus, settings, model.train_length);
}

}  // namespace reynard::evaluation
