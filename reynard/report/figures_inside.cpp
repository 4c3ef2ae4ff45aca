#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/head_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reynard::report {

namespace {

constexpr size_t kMostHeads = 96;     // maps of one figure
constexpr size_t kMostGateRows = 48;  // heads in the gate matrix

struct Head {
  size_t layer = 0, head = 0;
  std::string label() const { return fmt::format("layer {} head {}", layer + 1, head + 1); }
};

const json* inside_of(const RunResults& run) {
  const json* summary = run.evaluation("inside");
  if (!summary || list_at(*summary, "/series/layers").empty()) return nullptr;
  return &summary->at("series");
}

// The heads that have the key, thinned evenly to at most `most`.
std::vector<Head> heads_with(const json& series, const std::string& key, size_t most) {
  std::vector<Head> all;
  const json& layers = series.at("layers");
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto found = layers[l].find(key);
    if (found == layers[l].end() || !found->is_array()) continue;
    for (size_t h = 0; h < found->size(); ++h) all.push_back({l, h});
  }
  std::vector<Head> chosen;
  for (const size_t i : thinned(all.size(), most)) chosen.push_back(all[i]);
  return chosen;
}

std::string thinned_note(const json& series, const std::string& key, size_t shown) {
  const size_t all = heads_with(series, key, SIZE_MAX).size();
  return all > shown ? fmt::format(" {} of {} heads are shown.", shown, all) : "";
}

const json* start_of(const json& layer, size_t head) {
  const auto starts = layer.find("start");
  if (starts == layer.end() || !starts->is_array() || head >= starts->size()) return nullptr;
  return &starts->at(head);
}

// The maps of the heads, a row per layer.
HeadMaps maps_of(const json& series, const std::string& key, const std::vector<Head>& heads) {
  HeadMaps maps;
  for (const Head& head : heads) {
    const json& layer = series.at("layers").at(head.layer);
    maps.maps.push_back({head.label(), &layer.at(key).at(head.head), start_of(layer, head.head)});
  }
  maps.end = number_at(series, "/length");
  maps.cells = static_cast<int64_t>(number_at(series, "/cells"));
  maps.columns = series.at("layers").at(heads[0].layer).at(key).size();
  return maps;
}

std::string boundary_note(const HeadMaps& maps) {
  return std::any_of(maps.maps.begin(), maps.maps.end(), is_pruned)
             ? " The pink line is the pruning boundary: what lies left of it is not read."
             : "";
}

// A map per head of what the layers hold under the key.
std::optional<Figure> head_maps_figure(const RunResults& run,
                                       size_t index,
                                       const std::string& key,
                                       const char* color_title,
                                       const std::string& caption) {
  const json* series = inside_of(run);
  if (!series) return {};
  const std::vector<Head> heads = heads_with(*series, key, kMostHeads);
  if (heads.empty()) return {};
  HeadMaps maps = maps_of(*series, key, heads);
  maps.color = log_color(color_title);
  return Figure{fmt::format("{}_maps_{}", key, index + 1),
                fmt::format("{}: {}", run.name, key),
                caption + boundary_note(maps) + thinned_note(*series, key, heads.size()),
                maps_spec(maps)};
}

constexpr double kFontSize = 9;  // of the tokens under the gates; letters are 0.6 as wide

// How the tokens stand under the gates, so that they do not touch.
struct TokenLabels {
  bool turned = false;  // by a quarter: they are longer than a letter
  double column = 0;    // pixels that each needs across
  double depth = 0;     // pixels below the map
};
TokenLabels token_labels(const json& text) {
  constexpr double kMostDepth = 90;  // longer ones are cut
  size_t longest = 0;                // in characters
  bool is_wide = false;              // as Chinese ones, from U+3000 on
  for (const json& token : text) {
    const auto label = token.is_string() ? token.get<std::string>() : token.dump();
    longest = std::max<size_t>(longest, std::ranges::count_if(label, [](unsigned char c) {
                                 return (c & 0xc0) != 0x80;  // begins a character of UTF-8
                               }));
    is_wide = is_wide || std::ranges::any_of(label, [](unsigned char c) { return c >= 0xe3; });
  }
  if (longest <= 1 && !is_wide) return {false, 0.62 * kFontSize, kFontSize};
  const double width = (is_wide ? 1 : 0.62) * kFontSize * static_cast<double>(longest);
  return {true, 1.2 * kFontSize, std::min(width, kMostDepth)};
}

// Every gate of the heads at every token of the text.
json gate_values(const json& series, const std::vector<Head>& heads) {
  json values = json::array();
  const json& text = list_at(series, "/gate_text");
  for (const Head& head : heads) {
    const json& gates = series.at("layers").at(head.layer).at("gates").at(head.head);
    for (size_t i = 0; gates.is_array() && i < std::min(gates.size(), text.size()); ++i) {
      values.push_back({{"m", head.label()}, {"i", i}, {"f", gates[i]}, {"t", text.at(i)}});
    }
  }
  return values;
}

}  // namespace

std::optional<Figure> forget_gates(const RunResults& run, size_t index) {
  const json* series = inside_of(run);
  if (!series) return {};
  const std::vector<Head> heads = heads_with(*series, "gates", kMostGateRows);
  if (heads.empty()) return {};
  const json values = gate_values(*series, heads);
  const json& text = list_at(*series, "/gate_text");
  json letters = json::array();
  for (size_t i = 0; i < text.size(); ++i) letters.push_back({{"i", i}, {"t", text[i]}});
  json spec = base_spec(static_cast<int>(heads.size()) * 14);
  draw_on_canvas(spec);
  const TokenLabels labels = token_labels(text);
  // Pixels: names of heads, and tokens that stay readable; the page scrolls the rest.
  spec["usermeta"]["minimum"] =
      std::ceil(std::max(860.0, 90 + labels.column * static_cast<double>(text.size())));
  json x = quantitative("i", "");
  x["axis"] = nullptr;
  x["scale"] = {{"domain", {0, text.size()}}, {"nice", false}};
  const json color{{"field", "f"},
                   {"type", "quantitative"},
                   {"scale", {{"domain", {0, 1}}, {"scheme", "viridis"}}},
                   {"legend", {{"title", "gate f"}, {"orient", "top"}, {"gradientLength", 160}}}};
  json order = json::array();
  for (const Head& head : heads) order.push_back(head.label());
  json row{{"field", "m"}, {"type", "nominal"}, {"title", nullptr}, {"sort", order}};
  json letters_mark{{"type", "text"},
                    {"font", "ui-monospace, Menlo, Consolas, monospace"},
                    {"fontSize", kFontSize},
                    {"baseline", labels.turned ? "middle" : "top"},
                    {"y", {{"expr", "height + 4"}}}};
  if (labels.turned)
    letters_mark.update({{"angle", 270}, {"align", "right"}, {"limit", labels.depth}});
  spec["layer"] = {
      {{"data", {{"values", values}}},
       {"transform", {{{"calculate", "datum.i + 1"}, {"as", "i2"}}}},
       {"mark", {{"type", "rect"}}},
       {"encoding",
        {{"x", x},
         {"x2", {{"field", "i2"}}},
         {"y", row},
         {"color", color},
         {"tooltip",
          {{{"field", "m"}, {"type", "nominal"}, {"title", "head"}},
           {{"field", "t"}, {"type", "nominal"}, {"title", "token"}},
           {{"field", "f"}, {"type", "quantitative"}, {"title", "gate"}, {"format", ".3f"}}}}}}},
      {{"data", {{"values", letters}}},
       {"transform", {{{"calculate", "datum.i + 0.5"}, {"as", "middle"}}}},
       {"mark", letters_mark},
       {"encoding",
        {{"x", {{"field", "middle"}, {"type", "quantitative"}}},
         {"text", {{"field", "t"}, {"type", "nominal"}}}}}}};
  spec["padding"] = {{"left", 5}, {"right", 5}, {"top", 5}, {"bottom", 13 + labels.depth}};
  return Figure{
      fmt::format("forget_gates_{}", index + 1),
      run.name + ": forget gates",
      "Gate f of every head (rows) at every token (columns; the text stands below). Yellow keeps "
      "the past, dark blue lets it fade at this token. Columns that are dark in many heads are "
      "places where the model starts afresh, often line ends and new definitions; rows that are "
      "always yellow are heads that look far." +
          thinned_note(*series, "gates", heads.size()),
      spec};
}

std::optional<Figure> decay_maps(const RunResults& run, size_t index) {
  return head_maps_figure(
      run,
      index,
      "decay",
      "what is left of a key",
      "How much of a key (across) is left when a query (down) looks back at it: the product of all "
      "gates between, on a log scale. A bright triangle is a head with a long memory, a bright "
      "diagonal one that forgets at once.");
}

std::optional<Figure> attention_maps(const RunResults& run, size_t index) {
  return head_maps_figure(
      run,
      index,
      "attention",
      "share of attention",
      "Share of a query's attention (down) that falls on each stretch of keys (across), on a log "
      "scale. A bright left edge looks at the beginning, a bright diagonal at what is near, bright "
      "spots far from the diagonal at something found far back.");
}

std::optional<Figure> pruned_share(const RunResults& run, size_t index) {
  const json* summary = run.evaluation("pruning");
  if (!summary) return {};
  json values = json::array();
  const json& layers = list_at(*summary, "/series/pruned_share");
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t h = 0; layers[l].is_array() && h < layers[l].size(); ++h) {
      if (!layers[l][h].is_number()) continue;  // not known
      values.push_back({{"layer", l + 1}, {"head", h + 1}, {"share", layers[l][h]}});
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(static_cast<int>(layers.size()) * 34 + 10);
  spec["data"] = {{"values", values}};
  const json rows{{"field", "layer"}, {"type", "ordinal"}, {"title", "layer"}};
  const json columns{
      {"field", "head"}, {"type", "ordinal"}, {"title", "head"}, {"axis", {{"labelAngle", 0}}}};
  const json color{{"field", "share"},
                   {"type", "quantitative"},
                   {"scale", {{"domain", {0, 1}}, {"scheme", "tealblues"}}},
                   {"legend", nullptr}};
  const json label{{"field", "share"}, {"type", "quantitative"}, {"format", ".0%"}};
  const json ink{{"condition", {{"test", "datum.share > 0.55"}, {"value", "white"}}},
                 {"value", "#0f172a"}};
  spec["encoding"] = {{"x", columns}, {"y", rows}};
  spec["layer"] = {{{"mark", {{"type", "rect"}, {"tooltip", true}, {"cornerRadius", 3}}},
                    {"encoding", {{"color", color}}}},
                   {{"mark", {{"type", "text"}, {"fontSize", 11}}},
                    {"encoding", {{"text", label}, {"color", ink}}}}};
  return Figure{
      fmt::format("pruned_share_{}", index + 1),
      run.name + ": pruned share",
      "Share of the attention's 128 x 64 tiles that pruning skips, per layer and head. Local "
      "heads skip nearly all of the past, heads with a long memory nothing; what is skipped "
      "is neither read nor computed.",
      spec};
}

}  // namespace reynard::report
