#include "reynard/report/inspect_page.h"

#include "reynard/config/fields.h"
#include "reynard/report/escape.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/figures_heads.h"
#include "reynard/report/head_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace reynard::report {

namespace {

constexpr double kNoChange = 1e-3;  // nats: a change of the loss that nobody would notice
constexpr int kLargestMap = 256;    // pixels
constexpr double kMostInCell = 16;  // tokens whose text a map names together

std::vector<double> of_heads(const json& inspection, const std::string& key) {
  std::vector<double> values;
  for (const json& head : inspection.value("heads", json::array())) {
    const double value = number_at(head, key);
    if (!std::isnan(value)) values.push_back(value);
  }
  std::sort(values.begin(), values.end());
  return values;
}

std::string name_of(const json& inspection) {
  return config::printable(text_at(inspection, "/name"));
}

// The inspection as results that the figures of a report read.
RunResults as_run(const json& inspection) {
  RunResults run;
  run.name = name_of(inspection);
  run.evaluations["inside"]["series"] = inspection.value("overview", json::object());
  json& shares = run.evaluations["pruning"]["series"]["pruned_share"];
  shares = json::array();
  for (const json& head : inspection.value("heads", json::array())) {
    const double share = number_at(head, "/pruned_flops");
    const auto layer = static_cast<size_t>(number_at(head, "/layer"));
    if (std::isnan(share)) continue;
    while (shares.size() < layer) shares.push_back(json::array());
    shares[layer - 1].push_back(rounded(share, 4));
  }
  return run;
}

struct MapKind {
  const char *key, *id, *title, *caption;
};

// Maps of the heads that were chosen; part: "whole" or "window".
std::optional<Figure> chosen_maps(const json& inspection,
                                  const MapKind& kind,
                                  const std::string& part,
                                  const json& color,
                                  double threshold) {
  HeadMaps maps;
  const auto all = inspection.find("maps");
  if (all == inspection.end()) return {};
  for (const json& map : *all) {  // not a copy: the figure points into it
    const auto piece = map.find(part);
    if (piece == map.end() || !piece->contains(kind.key)) continue;
    maps.maps.push_back(
        {fmt::format("layer {} head {}", number_at(map, "/layer"), number_at(map, "/head")),
         &piece->at(kind.key),
         map.contains("start") ? &map.at("start") : nullptr});
    maps.begin = number_at(*piece, "/begin");
    maps.end = number_at(*piece, "/end");
    maps.cells = static_cast<int64_t>(number_at(*piece, "/cells"));
  }
  if (maps.maps.empty()) return {};
  maps.color = color;
  maps.threshold = threshold;
  maps.least = 192;
  maps.largest = kLargestMap;
  maps.columns = std::min<size_t>(3, maps.maps.size());
  const bool any = std::any_of(maps.maps.begin(), maps.maps.end(), is_pruned);
  const double per_cell = (maps.end - maps.begin) / static_cast<double>(maps.cells);
  std::string caption = kind.caption;
  const json& text = list_at(inspection, "/window_text");
  if (part == "window" && !text.empty() && per_cell <= kMostInCell) maps.text = &text;
  if (per_cell > 1) caption += fmt::format(" One cell is {:.4g} tokens wide.", per_cell);
  if (any) caption += " The pink line is the pruning boundary: what lies left of it is not read.";
  return Figure{
      fmt::format("{}_{}", kind.id, part), kind.title, std::move(caption), maps_spec(maps)};
}

FigureGroup map_group(const json& inspection, const std::string& part, double threshold) {
  FigureGroup group;
  group.id = part;
  if (part == "whole") {
    group.title = "Single heads";
    group.intro =
        "Three heads in full, unless others were named: the one that looks farthest, a middle one "
        "and the one that looks nearest. Rows are queries, columns the keys that they look back "
        "at, both in the order of the text.";
  } else {
    const json::json_pointer path("/settings/window");
    const json window = inspection.contains(path) ? inspection.at(path) : json::array({0, 0});
    group.title = "Token by token";
    group.intro = fmt::format("The same heads on tokens {} to {} of the text alone.",
                              grouped(window.at(0).get<int64_t>()),
                              grouped(window.at(1).get<int64_t>()));
  }
  const auto add = [&](const MapKind& kind, const json& color, double least) {
    keep(group.figures, chosen_maps(inspection, kind, part, color, least));
  };
  add({"decay",
       "forget_matrix",
       "Forget-gate matrix F",
       "F is the product of all gates between key and query: 1 where nothing was forgotten, 0 "
       "where all was. Bright down to the lower left corner is a head that keeps the whole text; "
       "edges of steps are places where it starts afresh."},
      linear_color("F", 0, 1, ".1f"),
      threshold);
  add({"log_decay",
       "decay_bias",
       "Decay D = ln F",
       "The same as it enters the attention: D is added to the logit of query and key, in nats, "
       "cut at -20. At -10 a key must fit e^10 times better than one just said to get as much "
       "attention."},
      linear_color("D (nats)", -20, 0, "d"),
      -1e300);
  add({"attention",
       "attention_matrix",
       "Attention map A",
       "What came of it: the share of a query's attention that each stretch of keys gets, on a "
       "log scale. Bright spots far from the diagonal are things found far back; a bright left "
       "edge is a head that rests on the beginning."},
      log_color("share of attention", threshold),
      threshold);
  return group;
}

std::string findings_section(const json& inspection) {
  std::string text = "<section id=\"findings\"><h2>In short</h2><div class=\"card verdict\"><ul>";
  for (const std::string& sentence : inspection_findings(inspection)) {
    text += fmt::format("<li>{}</li>", html(sentence));
  }
  return text + "</ul></div></section>\n";
}

std::string command_section(const json& inspection) {
  const std::string command = text_at(inspection, "/command");
  if (command.empty()) return "";
  return fmt::format(
      "<section id=\"repeat\"><h2>Repeat it</h2><div class=\"card\"><pre>{}</pre>"
      "</div></section>\n",
      html(command));
}

std::string lead_of(const json& inspection) {
  std::string lead = "What the attention heads do";
  std::string names;
  for (const json& text : inspection.value("texts", json::array())) {
    names += fmt::format("{}{} of {}",
                         names.empty() ? "" : ", ",
                         grouped(static_cast<int64_t>(number_at(text, "/tokens")), "token"),
                         text_at(text, "/name"));
  }
  if (!names.empty()) lead += " on " + names;
  lead += ". Numbers per head are means over the texts; maps are of the first.";
  return lead;
}

// What pruning skips, of the heads of which it is known.
std::string pruning_finding(const json& inspection) {
  const json& heads = list_at(inspection, "/heads");
  const auto gated = std::count_if(
      heads.begin(), heads.end(), [](const json& head) { return head.contains("pruned_flops"); });
  if (gated == 0) return "The model has no forget gates: nothing fades and nothing is pruned.";
  const std::vector<double> pruned = of_heads(inspection, "/pruned_flops");
  if (pruned.empty()) return "What pruning skips is not known: all heads read a memory.";
  double mean = 0;
  for (const double share : pruned) mean += share / static_cast<double>(pruned.size());
  const std::string known = fmt::format(
      "Pruning at ε = e^{:g} skips {:.0f} % of attention's work on these texts; {} of "
      "the heads are skipped by more than half.",
      number_at(inspection, "/settings/log_tolerance"),
      100 * mean,
      std::count_if(pruned.begin(), pruned.end(), [](double x) { return x > 0.5; }));
  const int64_t unknown = gated - std::ssize(pruned);
  if (unknown == 0) return known;
  return known + fmt::format(
                     " Not counted are {} of {} heads, which read a memory: what pruning "
                     "skips there is not known.",
                     unknown,
                     gated);
}

}  // namespace

std::vector<std::string> inspection_findings(const json& inspection) {
  std::vector<std::string> findings;
  const std::vector<double> reach = of_heads(inspection, "/reach");
  if (!reach.empty()) {
    findings.push_back(
        fmt::format("{}. Half of them have nine tenths of their attention within {}; the nearest "
                    "within {}, the farthest within {}.",
                    grouped(std::ssize(reach), "head"),
                    grouped(static_cast<int64_t>(reach[reach.size() / 2]), "token"),
                    grouped(static_cast<int64_t>(reach.front())),
                    grouped(static_cast<int64_t>(reach.back()))));
  }
  findings.push_back(pruning_finding(inspection));
  const json::json_pointer path("/sweep/points");
  if (!inspection.contains(path)) return findings;
  for (const json& point : inspection.at(path)) {
    // The loosest tolerance from which on nothing changes.
    const auto& points = inspection.at(path);
    const auto from = static_cast<size_t>(&point - &points.front());
    const bool unchanged = std::all_of(
        points.begin() + static_cast<int64_t>(from), points.end(), [](const json& later) {
          return std::abs(number_at(later, "/loss_difference")) < kNoChange;
        });
    if (!unchanged) continue;
    const double skipped = number_at(point, "/pruned_flops");
    findings.push_back(fmt::format(
        "From ε = e^{:g} on the loss is that of the unpruned model to {:g} nats{}.",
        number_at(point, "/log_tolerance"),
        kNoChange,
        std::isnan(skipped)
            ? ""
            : fmt::format("; there {:.0f} % of attention's work is skipped", 100 * skipped)));
    break;
  }
  return findings;
}

std::vector<FigureGroup> inspection_figures(const json& inspection,
                                            const InspectPageOptions& options) {
  const RunResults run = as_run(inspection);
  std::vector<FigureGroup> groups{
      {"memory", "How far heads look", "Attention and gates of every head.", 1, {}},
      {"pruning",
       "Pruning",
       "Where the forget gates have faded the past below a tolerance ε, attention need not read "
       "it.",
       2,
       {}},
      {"overview",
       "All heads",
       "The first text in every head at once: look for heads that differ from the rest.",
       1,
       {}}};
  keep(groups[0].figures, head_reach(inspection));
  keep(groups[0].figures, gate_histograms(inspection));
  keep(groups[1].figures, pruned_histogram(inspection));
  keep(groups[1].figures, pruned_by_layer(inspection));
  keep(groups[1].figures, sweep_loss(inspection));
  keep(groups[1].figures, sweep_pruning(inspection));
  keep(groups[1].figures, pruned_share(run, 0));
  keep(groups[2].figures, decay_maps(run, 0));
  keep(groups[2].figures, attention_maps(run, 0));
  keep(groups[2].figures, forget_gates(run, 0));
  for (const char* part : {"whole", "window"}) {
    groups.push_back(map_group(inspection, part, options.threshold));
  }
  std::erase_if(groups, [](const FigureGroup& group) { return group.figures.empty(); });
  return groups;
}

std::string inspect_page(const json& inspection,
                         const InspectPageOptions& options,
                         std::string_view vega_javascript) {
  PageShell shell{"reynard inspect",
                  fmt::format("Inside {}", name_of(inspection)),
                  lead_of(inspection),
                  {{"findings", "In short"}},
                  findings_section(inspection)};
  for (const FigureGroup& group : inspection_figures(inspection, options)) {
    shell.links.push_back({group.id, group.title});
    shell.main += group_html(group);
  }
  shell.links.push_back({"words", "Words"});
  shell.main += words_section() + command_section(inspection);
  return html_page(shell, vega_javascript);
}

}  // namespace reynard::report
