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

constexpr int kFileWidth = 770;  // pixels of a row of gates where no page decides
constexpr double kFontSize = 9;  // of the tokens under the gates; letters are 0.6 as wide

// How the tokens stand under the gates, so that they do not touch.
struct TokenLabels {
  bool turned = false;  // by a quarter: they are longer than a letter
  double column = 0;    // pixels that each needs across
  double limit = 0;     // pixels below the map, beyond which they are cut
};
TokenLabels token_labels(const json& text) {
  constexpr double kLimit = 90;
  size_t longest = 0;    // in characters
  bool is_wide = false;  // as Chinese ones, from U+3000 on
  for (const json& token : text) {
    const auto label = token.is_string() ? token.get<std::string>() : token.dump();
    longest = std::max<size_t>(longest, std::ranges::count_if(label, [](unsigned char c) {
                                 return (c & 0xc0) != 0x80;  // begins a character of UTF-8
                               }));
    is_wide = is_wide || std::ranges::any_of(label, [](unsigned char c) { return c >= 0xe3; });
  }
  if (longest <= 1 && !is_wide) return {false, 0.62 * kFontSize, kFontSize};
  const double width = (is_wide ? 1 : 0.62) * kFontSize * static_cast<double>(longest);
  return {true, 1.2 * kFontSize, std::min(width, kLimit)};
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

// Where a token begins, ends or stands in its row.
json place_in_row(const char* field) {
  json x = quantitative(field, "");
  x["axis"] = nullptr;
  x["scale"] = {{"domain", {0, {{"expr", "in_row"}}}}, {"nice", false}};
  return x;
}

// Pixels of a row of tokens.
size_t height_of(const std::vector<Head>& heads) {
  return 14 * heads.size();
}

json gate_cells(const std::vector<Head>& heads) {
  json order = json::array();
  for (const Head& head : heads) order.push_back(head.label());
  const json color{{"field", "f"},
                   {"type", "quantitative"},
                   {"scale", {{"domain", {0, 1}}, {"scheme", "viridis"}}},
                   {"legend", {{"title", "gate f"}, {"orient", "top"}, {"gradientLength", 160}}}};
  const json tooltip{
      {{"field", "m"}, {"type", "nominal"}, {"title", "head"}},
      {{"field", "t"}, {"type", "nominal"}, {"title", "token"}},
      {{"field", "f"}, {"type", "quantitative"}, {"title", "gate"}, {"format", ".3f"}}};
  return {{"transform", {{{"calculate", "datum.from + 1"}, {"as", "to"}}}},
          {"mark", {{"type", "rect"}}},
          {"encoding",
           {{"x", place_in_row("from")},
            {"x2", {{"field", "to"}}},
            {"y", {{"field", "m"}, {"type", "nominal"}, {"title", nullptr}, {"sort", order}}},
            {"color", color},
            {"tooltip", tooltip}}}};
}

// The tokens, once below all heads.
json gate_letters(const std::vector<Head>& heads, const TokenLabels& labels) {
  json mark{{"type", "text"},
            {"font", "ui-monospace, Menlo, Consolas, monospace"},
            {"fontSize", kFontSize},
            {"baseline", labels.turned ? "middle" : "top"},
            {"y", height_of(heads) + 4}};
  if (labels.turned) mark.update({{"angle", 270}, {"align", "right"}, {"limit", labels.limit}});
  return {{"transform",
           {{{"filter", {{"field", "m"}, {"equal", heads.front().label()}}}},
            {{"calculate", "datum.from + 0.5"}, {"as", "middle"}}}},
          {"mark", mark},
          {"encoding",
           {{"x", place_in_row("middle")}, {"text", {{"field", "t"}, {"type", "nominal"}}}}}};
}

}  // namespace

std::optional<Figure> forget_gates(const RunResults& run, size_t index) {
  const json* series = inside_of(run);
  if (!series) return {};
  const std::vector<Head> heads = heads_with(*series, "gates", kMostGateRows);
  const json& text = list_at(*series, "/gate_text");
  if (heads.empty() || text.empty()) return {};
  const TokenLabels labels = token_labels(text);
  json spec = panels_spec();
  // The page chooses how many tokens stand in a row.
  spec["usermeta"]["tokens"] = text.size();
  spec["usermeta"]["column"] = labels.column;
  spec["usermeta"]["label"] = heads.back().label();
  const auto tokens = static_cast<double>(text.size());
  const double rows = std::ceil(tokens * labels.column / kFileWidth);
  spec["params"] = {{{"name", "in_row"}, {"value", std::ceil(tokens / rows)}}};
  spec["data"] = {{"values", gate_values(*series, heads)}};
  spec["transform"] = {{{"calculate", "floor(datum.i / in_row)"}, {"as", "row"}},
                       {{"calculate", "datum.i % in_row"}, {"as", "from"}}};
  spec["facet"] = {
      {"row", {{"field", "row"}, {"type", "ordinal"}, {"title", nullptr}, {"header", nullptr}}}};
  spec["spacing"] = 10;
  spec["spec"] = {{"width", kFileWidth},
                  {"height", height_of(heads)},
                  {"layer", {gate_cells(heads), gate_letters(heads, labels)}}};
  return Figure{
      fmt::format("forget_gates_{}", index + 1),
      run.name + ": forget gates",
      "Gate f of every head (rows) at every token (columns; the text stands below, in as many "
      "panels as it needs). Yellow keeps the past, dark blue lets it fade at this token. Columns "
      "that are dark in many heads are "
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
