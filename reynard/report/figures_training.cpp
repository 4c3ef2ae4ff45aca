#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/run_look.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace reynard::report {

namespace {

constexpr size_t kMostCurvePoints = 500;  // of one line
constexpr int64_t kMostSmoothed = 21;     // logged steps

// (tokens, value) of every logged step that has the key.
struct Curve {
  std::vector<double> tokens, values;
};
Curve curve_of(const RunResults& run, const std::string& key) {
  Curve curve;
  for (const json& line : run.metrics) {
    const double tokens = number_at(line, "/tokens");
    const double value = number_at(line, "/" + key);
    if (std::isnan(tokens) || std::isnan(value)) continue;
    curve.tokens.push_back(tokens);
    curve.values.push_back(value);
  }
  return curve;
}

json tokens_axis() {
  json x = quantitative("tokens", "training tokens");
  x["axis"] = {{"format", "~s"}, {"labelFlush", true}};
  x["scale"] = {{"nice", false}};
  return x;
}

}  // namespace

std::vector<double> smoothed(const std::vector<double>& values, int64_t window) {
  tensor::check_value(window > 0 && window % 2 == 1, "smoothed", "window", window, "an odd number");
  const auto n = static_cast<int64_t>(values.size());
  std::vector<double> sum(n + 1);
  std::vector<int64_t> count(n + 1);
  for (int64_t i = 0; i < n; ++i) {
    const bool known = !std::isnan(values[i]);
    sum[i + 1] = sum[i] + (known ? values[i] : 0);
    count[i + 1] = count[i] + (known ? 1 : 0);
  }
  std::vector<double> result(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = std::max(int64_t{0}, i - window / 2);
    const int64_t end = std::min(n, i + window / 2 + 1);
    const int64_t known = count[end] - count[begin];
    result[i] = known ? (sum[end] - sum[begin]) / static_cast<double>(known) : std::nan("");
  }
  return result;
}

std::optional<Figure> training_loss(const Runs& runs) {
  json values = json::array();
  size_t longest = 0;
  for (const RunResults& run : runs) longest = std::max(longest, run.metrics.size());
  // A twentieth of a short run, odd: a wider mean would hide how it begins.
  const int64_t window = std::min(kMostSmoothed, static_cast<int64_t>(longest / 20) | 1);
  for (const RunResults& run : runs) {
    const Curve curve = curve_of(run, "loss");
    const std::vector<double> mean = smoothed(curve.values, window);
    for (const size_t i : thinned(curve.values.size(), kMostCurvePoints)) {
      values.push_back({{"run", run.name},
                        {"tokens", curve.tokens[i]},
                        {"loss", rounded(curve.values[i])},
                        {"mean", rounded(mean[i])}});
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(300);
  spec["data"] = {{"values", values}};
  spec["encoding"] = line_channels(names_of(runs));
  spec["encoding"]["x"] = tokens_axis();
  json loss = quantitative("loss", "loss (nats per token)");
  loss["scale"] = {{"zero", false}};
  json mean = quantitative("mean", "loss (nats per token)");
  spec["layer"] = {{{"mark", {{"type", "line"}, {"opacity", 0.25}, {"strokeWidth", 1}}},
                    {"encoding", {{"y", loss}}}},
                   {{"mark", {{"type", "line"}, {"tooltip", true}}}, {"encoding", {{"y", mean}}}}};
  return Figure{
      "training_loss",
      "Training loss",
      fmt::format("Loss of each logged step (faint) and its centred mean over {} of them. At equal "
                  "tokens the lower curve learns faster; where both flatten, more training "
                  "buys little.",
                  window),
      spec};
}

std::optional<Figure> training_speed(const Runs& runs) {
  json values = json::array();
  for (const RunResults& run : runs) {
    const Curve curve = curve_of(run, "tokens_per_s");
    for (const size_t i : thinned(curve.values.size(), kMostCurvePoints)) {
      values.push_back(
          {{"run", run.name}, {"tokens", curve.tokens[i]}, {"speed", rounded(curve.values[i])}});
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(220);
  spec["data"] = {{"values", values}};
  json speed = quantitative("speed", "tokens per second");
  speed["axis"] = {{"format", "~s"}};
  spec["mark"] = {{"type", "line"}, {"tooltip", true}};
  spec["encoding"] = {{"x", tokens_axis()}, {"y", speed}};
  spec["encoding"].update(line_channels(names_of(runs)));
  return Figure{
      "training_speed",
      "Training speed",
      "Tokens per second over the run, from zero. With pruning, a model whose gates learn "
      "to close gets faster as it trains.",
      spec};
}

std::optional<Figure> gate_saturation(const Runs& runs) {
  json values = json::array();
  const std::array<std::pair<const char*, const char*>, 3> keys = {
      {{"gates_closed", "gates below 0.01"},
       {"gates_open", "gates above 0.99"},
       {"pruned_share", "pruned tiles"}}};
  for (const RunResults& run : runs) {
    if (curve_of(run, "gates_open").values.empty()) continue;  // a model without gates
    for (const auto& [key, label] : keys) {
      const Curve curve = curve_of(run, key);
      for (const size_t i : thinned(curve.values.size(), kMostCurvePoints)) {
        values.push_back({{"run", run.name},
                          {"tokens", curve.tokens[i]},
                          {"share", rounded(curve.values[i])},
                          {"what", label}});
      }
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(220);
  spec["data"] = {{"values", values}};
  json share = quantitative("share", "share");
  share["axis"] = {{"format", ".0%"}};
  share["scale"] = {{"domain", {0, 1}}};
  spec["mark"] = {{"type", "line"}, {"tooltip", true}};
  spec["encoding"] = {{"x", tokens_axis()},
                      {"y", share},
                      {"strokeDash",
                       {{"field", "what"},
                        {"type", "nominal"},
                        {"legend", {{"orient", "bottom"}, {"title", nullptr}, {"columns", 1}}}}}};
  spec["encoding"].update(line_channels(names_of(runs), SecondChannel::kOpacity));
  return Figure{
      "gate_saturation",
      "Gates and pruning during training",
      "Share of forget gates that are shut or wide open, and share of attention tiles that "
      "pruning skips. Heads that look only nearby close their gates, and pruning follows.",
      spec};
}

}  // namespace reynard::report
