#include "reynard/report/figures_heads.h"

#include "reynard/report/figure_style.h"
#include "reynard/report/run_look.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace reynard::report {

namespace {

constexpr int kBins = 20;
constexpr double kLoosest = -1, kTightest = -20;  // logs of the tolerances that are tried
constexpr size_t kMostRows = 48;                  // heads in the figure of gates

const json& heads_of(const json& inspection) {
  static const json kNone = json::array();
  const auto found = inspection.find("heads");
  return found != inspection.end() && found->is_array() ? *found : kNone;
}

double longest_text(const json& inspection) {
  double longest = 0;
  for (const json& text : inspection.value("texts", json::array())) {
    longest = std::fmax(longest, number_at(text, "/tokens"));
  }
  return longest;
}

std::string label_of(const json& head) {
  return fmt::format("layer {} head {}", number_at(head, "/layer"), number_at(head, "/head"));
}

json sweep_points(const json& inspection) {
  const json::json_pointer path("/sweep/points");
  return inspection.contains(path) ? inspection.at(path) : json::array();
}

// A line over the tolerances, the one in use marked.
// least: what the axis shows at least, so that rounding does not look like a change.
json sweep_spec(const json& inspection,
                const char* field,
                const char* title,
                const char* format,
                const std::pair<double, double>& least) {
  json values = json::array();
  double largest = 0;
  for (const json& point : sweep_points(inspection)) {
    const double value = number_at(point, fmt::format("/{}", field));
    if (std::isnan(value)) continue;
    largest = std::fmax(largest, std::abs(value));
    values.push_back(
        {{"tolerance", number_at(point, "/log_tolerance")}, {field, rounded(value, 4)}});
  }
  if (values.empty()) return {};
  json spec = base_spec(240);
  json x = quantitative("tolerance", "tolerance ln ε");
  x["scale"] = {{"domain", {kTightest, kLoosest}}, {"nice", false}, {"reverse", true}};
  x["axis"] = {{"tickCount", 10}};
  json y = quantitative(field, title);
  y["axis"] = {{"format", format}};
  if (largest < least.second) y["scale"] = {{"domain", {least.first, least.second}}};
  spec["layer"] = {{{"data", {{"values", values}}},
                    {"mark", {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 30}}}}},
                    {"encoding", {{"x", x}, {"y", y}, {"color", {{"value", run_color(0)}}}}}}};
  const double used = number_at(inspection, "/settings/log_tolerance");
  if (used < 0) {
    const MarkStyle style{.label_left = used < (kLoosest + kTightest) / 2};  // where more room is
    spec["layer"].push_back(marked_position(used, fmt::format("this page: {:g}", used), style));
  }
  return spec;
}

}  // namespace

std::optional<Figure> head_reach(const json& inspection) {
  json values = json::array();
  const double longest = longest_text(inspection);
  int64_t layers = 0;
  for (const json& head : heads_of(inspection)) {
    layers = std::max(layers, static_cast<int64_t>(number_at(head, "/layer")));
    const auto add = [&](const char* what, double tokens) {
      if (std::isnan(tokens)) return;
      values.push_back({{"layer", number_at(head, "/layer")},
                        {"head", label_of(head)},
                        {"what", what},
                        {"tokens", rounded(std::max(1.0, tokens), 4)}});
    };
    add("90 % of the attention lies within", number_at(head, "/reach"));
    add("the gates keep", number_at(head, "/gate_memory"));
  }
  if (values.empty()) return {};
  json spec = base_spec(static_cast<int>(60 + 36 * layers));
  spec["data"] = {{"values", values}};
  json x = quantitative("tokens", "tokens (log scale)");
  x["scale"] = {{"type", "log"}, {"base", 2}, {"domain", {1, longest}}, {"nice", false}};
  x["axis"] = {{"format", ",d"}};
  spec["mark"] = {{"type", "point"}, {"filled", true}, {"size", 60}, {"opacity", 0.75}};
  spec["encoding"] = {
      {"x", x},
      {"y", {{"field", "layer"}, {"type", "ordinal"}, {"title", "layer"}}},
      {"yOffset", {{"field", "what"}, {"type", "nominal"}}},
      {"color",
       {{"field", "what"},
        {"type", "nominal"},
        {"scale", {{"range", {std::string(kLmColor), std::string(kCopyColor)}}}},
        {"legend", {{"orient", "top"}, {"direction", "vertical"}, {"title", nullptr}}}}},
      {"tooltip",
       {{{"field", "head"}, {"type", "nominal"}},
        {{"field", "what"}, {"type", "nominal"}},
        {{"field", "tokens"}, {"type", "quantitative"}, {"format", ",.1f"}}}}};
  return Figure{
      "head_reach",
      "How far each head looks",
      "One dot per head and kind. Attention: the distance back within which nine tenths of a "
      "query's attention lie, the median over queries of the text's second half. Gates: how many "
      "tokens' worth of the past the forget gates leave on average. Dots at the left are local "
      "heads, dots at the right edge see the whole text; a head whose gates keep much but whose "
      "attention stays near could look far and does not.",
      spec};
}

std::optional<Figure> gate_histograms(const json& inspection) {
  const json& heads = heads_of(inspection);
  json values = json::array();
  json order = json::array();
  for (const size_t i : thinned(heads.size(), kMostRows)) {
    const auto histogram = heads[i].find("gate_histogram");
    if (histogram == heads[i].end() || !histogram->is_array() || histogram->empty()) continue;
    order.push_back(label_of(heads[i]));
    const auto bins = static_cast<double>(histogram->size());
    for (size_t b = 0; b < histogram->size(); ++b) {
      values.push_back({{"head", order.back()},
                        {"from", rounded(static_cast<double>(b) / bins)},
                        {"to", rounded(static_cast<double>(b + 1) / bins)},
                        {"share", rounded(histogram->at(b).get<double>(), 3)}});
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(static_cast<int>(order.size()) * 15);
  spec["data"] = {{"values", values}};
  json x = quantitative("from", "gate f (0: forgets, 1: keeps)");
  x["scale"] = {{"domain", {0, 1}}, {"nice", false}};
  spec["mark"] = {{"type", "rect"}, {"tooltip", true}};
  spec["encoding"] = {
      {"x", x},
      {"x2", {{"field", "to"}}},
      {"y", {{"field", "head"}, {"type", "nominal"}, {"title", nullptr}, {"sort", order}}},
      {"color",
       {{"field", "share"},
        {"type", "quantitative"},
        {"scale", {{"type", "sqrt"}, {"domain", {0, 1}}, {"scheme", "blues"}}},
        {"legend",
         {{"title", "share of tokens"},
          {"orient", "top"},
          {"format", ".0%"},
          {"gradientLength", 160}}}}}};
  const std::string note =
      heads.size() > order.size()
          ? fmt::format(" {} of {} heads are shown.", order.size(), heads.size())
          : "";
  return Figure{"gate_histograms",
                "Forget gates",
                "How often each head's gate takes which value, in bins of 0.05. All in the last "
                "bin: the head forgets nothing. Two dark ends: it keeps the past and wipes it at "
                "some tokens. Spread out: it forgets a little at every token." +
                    note,
                spec};
}

std::optional<Figure> pruned_histogram(const json& inspection) {
  std::vector<int> counts(kBins, 0);
  int heads = 0;
  for (const json& head : heads_of(inspection)) {
    const double share = number_at(head, "/pruned_flops");
    if (std::isnan(share)) continue;
    ++counts[std::clamp(static_cast<int>(share * kBins), 0, kBins - 1)];
    ++heads;
  }
  if (heads == 0) return {};
  json values = json::array();
  for (int b = 0; b < kBins; ++b) {
    values.push_back({{"from", rounded(static_cast<double>(b) / kBins)},
                      {"to", rounded(static_cast<double>(b + 1) / kBins)},
                      {"heads", counts[b]}});
  }
  json spec = base_spec(220);
  spec["data"] = {{"values", values}};
  json x = quantitative("from", "share of the head's attention that is skipped");
  x["bin"] = "binned";
  x["axis"] = {{"format", ".0%"}, {"values", {0, 0.2, 0.4, 0.6, 0.8, 1}}};
  x["scale"] = {{"domain", {0, 1}}, {"nice", false}};
  json y = quantitative("heads", "heads");
  y["axis"] = {{"tickMinStep", 1}, {"format", "d"}};
  spec["mark"] = {{"type", "bar"}, {"tooltip", true}, {"color", run_color(0)}, {"binSpacing", 1}};
  spec["encoding"] = {{"x", x}, {"x2", {{"field", "to"}}}, {"y", y}};
  return Figure{"pruned_histogram",
                "Heads by what pruning skips",
                "How many heads have which share of their attention's work skipped, in bins of "
                "5 %. Two heaps are usual: local heads at the right, heads with a long memory at "
                "the left. Keys within about 128 tokens are always read, so in short texts even "
                "the most local head cannot be far at the right.",
                spec};
}

std::optional<Figure> pruned_by_layer(const json& inspection) {
  std::map<double, std::pair<double, int>> layers;  // sum and number of heads
  for (const json& head : heads_of(inspection)) {
    const double share = number_at(head, "/pruned_flops");
    if (std::isnan(share)) continue;
    auto& [sum, count] = layers[number_at(head, "/layer")];
    sum += share;
    ++count;
  }
  if (layers.empty()) return {};
  json values = json::array();
  for (const auto& [layer, of] : layers) {
    values.push_back({{"layer", layer}, {"share", rounded(of.first / of.second, 4)}});
  }
  json spec = base_spec(220);
  spec["data"] = {{"values", values}};
  json y = quantitative("share", "attention skipped");
  y["axis"] = {{"format", ".0%"}};
  y["scale"] = {{"domain", {0, 1}}};
  spec["mark"] = {{"type", "bar"}, {"tooltip", true}, {"color", run_color(0)}};
  spec["encoding"] = {{"x",
                       {{"field", "layer"},
                        {"type", "ordinal"},
                        {"title", "layer"},
                        {"axis", {{"labelAngle", 0}}}}},
                      {"y", y}};
  return Figure{"pruned_by_layer",
                "What pruning skips, by layer",
                "Share of each layer's attention work that is skipped, all heads together. High "
                "bars in the first layers are usual: their heads look at what is near.",
                spec};
}

std::optional<Figure> sweep_loss(const json& inspection) {
  const json spec = sweep_spec(
      inspection, "loss_difference", "change of the loss (nats per token)", "~g", {-1e-3, 1e-3});
  if (spec.is_null()) return {};
  return Figure{
      "sweep_loss",
      "What pruning costs",
      fmt::format("Change of the mean loss on the same tokens when attention may drop ε of any "
                  "query's weight, for ε from e^-1 (left) to e^-20. Without pruning the loss is "
                  "{:.4f}. Where the line is at 0, pruning changes nothing.",
                  number_at(inspection, "/sweep/loss_unpruned")),
      spec};
}

std::optional<Figure> sweep_pruning(const json& inspection) {
  const json spec =
      sweep_spec(inspection, "pruned_flops", "share of attention's work skipped", ".0%", {0, 0.1});
  if (spec.is_null()) return {};
  return Figure{"sweep_pruning",
                "What pruning saves",
                "Share of attention's floating-point operations that are skipped at the same "
                "tolerances. Choose the leftmost ε at which the other figure is still at 0.",
                spec};
}

}  // namespace reynard::report
