// Scores of tasks that ask for something said in a long text: a map over two settings, or lines by
// length.

#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/run_look.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace reynard::report {

namespace {

// The averages of a task; empty where it was not measured.
json groups_of(const RunResults& run, std::string_view task) {
  const json* summary = run.evaluation(task);
  return summary ? list_at(*summary, "/series/groups") : json::array();
}

json group_value(const json& group, std::string_view key) {
  return group.is_object() ? group.value(std::string(key), json()) : json();
}

json score_values(const json& groups, std::string_view x, std::string_view y) {
  json values = json::array();
  for (const json& group : groups) {
    const double score = number_at(group, "/score");
    if (std::isnan(score)) continue;
    json value{{"x", group_value(group, x)},
               {"score", rounded(score, 4)},
               {"samples", number_at(group, "/samples")}};
    if (!y.empty()) value["y"] = group_value(group, y);
    const double error = number_at(group, "/standard_error");
    if (!std::isnan(number_at(group, "/low"))) {
      value["low"] = number_at(group, "/low");
      value["high"] = number_at(group, "/high");
    } else if (!std::isnan(error)) {
      value["low"] = rounded(std::max(0.0, score - error), 4);
      value["high"] = rounded(std::min(1.0, score + error), 4);
    }
    values.push_back(std::move(value));
  }
  return values;
}

// The first tested length beyond the training length, "" where there is none.
std::string extrapolation_note(const RunResults& run, const json& groups, std::string_view key) {
  const int64_t trained = run.train_length();
  std::set<int64_t> beyond;
  for (const json& group : groups) {
    const json value = group_value(group, key);
    if (value.is_number_integer() && value.get<int64_t>() > trained)
      beyond.insert(value.get<int64_t>());
  }
  if (trained <= 0 || beyond.empty()) return "";
  return fmt::format(" The model was trained on {} tokens at once: columns from {} on extrapolate.",
                     grouped(trained),
                     grouped(*beyond.begin()));
}

// Lengths beyond the training length carry how many times as long they are.
std::string length_label(int64_t trained) {
  const std::string plain = "format(datum.value, ',d')";
  if (trained <= 0) return plain;
  return fmt::format(
      "datum.value > {0} ? {1} + ' (' + format(datum.value / {0}, '.2~f') + '×)' : {1}",
      trained,
      plain);
}

}  // namespace

std::optional<Figure> score_map(const RunResults& run, size_t index, const ScoreMap& map) {
  const json groups = groups_of(run, map.task);
  const json values = score_values(groups, map.x, map.y);
  if (values.empty()) return {};
  std::set<json> rows;
  for (const json& value : values) rows.insert(value.at("y"));
  json spec = base_spec(static_cast<int>(60 + 26 * rows.size()));
  spec["data"] = {{"values", values}};
  json x{{"field", "x"},
         {"type", "ordinal"},
         {"title", map.x_title},
         {"axis", {{"labelAngle", 0}, {"labelOverlap", true}}}};
  if (map.x == "length") x["axis"]["labelExpr"] = length_label(run.train_length());
  const json y{{"field", "y"}, {"type", "ordinal"}, {"title", map.y_title}};
  spec["encoding"] = {{"x", x}, {"y", y}};
  json color = quantitative("score", "score");
  color["scale"] = {{"domain", {0, 0.5, 1}}, {"range", {"#dc2626", "#facc15", "#16a34a"}}};
  color["legend"] = {{"orient", "top"}, {"format", ".0%"}, {"gradientLength", 160}};
  spec["layer"] = {{{"mark", {{"type", "rect"}, {"tooltip", true}, {"opacity", 0.85}}},
                    {"encoding", {{"color", color}}}}};
  return Figure{fmt::format("{}_{}", map.task, index + 1),
                fmt::format("{}: {}", run.name, map.title),
                std::string(map.caption) + extrapolation_note(run, groups, map.x),
                spec};
}

std::optional<Figure> score_lines(const Runs& runs, const ScoreLines& lines) {
  json values = json::array();
  std::set<int64_t> trained;
  for (const RunResults& run : runs) {
    for (json& value : score_values(groups_of(run, lines.task), lines.x, "")) {
      value["run"] = run.name;
      values.push_back(std::move(value));
    }
    if (run.train_length() > 0) trained.insert(run.train_length());
  }
  if (values.empty()) return {};
  json spec = base_spec(260);
  json x = quantitative("x", lines.x_title);
  x["axis"] = {{"format", ",d"}, {"labelFlush", 8}};  // the last label may lie at the edge
  x["scale"] = {{"type", "log"}, {"base", 2}, {"nice", false}};
  json y = quantitative("score", "accuracy");
  y["axis"] = {{"format", ".0%"}};
  y["scale"] = {{"domain", {0, 1}}};
  const std::vector<std::string> names = names_of(runs);
  const json bars{{"x", x}, {"color", color_encoding(names)}};
  json line = line_channels(names);
  line["y"] = y;
  spec["layer"] = {
      {{"data", {{"values", values}}},
       {"encoding", bars},
       {"layer",
        {{{"mark", {{"type", "rule"}}},
          {"encoding",
           {{"y", {{"field", "low"}, {"type", "quantitative"}}}, {"y2", {{"field", "high"}}}}}},
         {{"mark", {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 30}}}}},
          {"encoding", line}}}}}};
  LengthAxis axis{.shortest = HUGE_VAL};
  for (const json& value : values) {
    axis.longest = std::fmax(axis.longest, number_at(value, "/x"));
    axis.shortest = std::fmin(axis.shortest, number_at(value, "/x"));
  }
  for (json& mark : training_length_marks(trained, axis)) {
    spec["layer"].push_back(std::move(mark));
  }
  return Figure{lines.task, lines.title, lines.caption, spec};
}

std::optional<Figure> document_perplexity(const Runs& runs) {
  json values = json::array();
  std::set<int64_t> trained;
  LengthAxis axis;
  for (const RunResults& run : runs) {
    const json* summary = run.evaluation("perplexity");
    if (!summary || list_at(*summary, "/series/documents").empty()) continue;
    if (run.train_length() > 0) trained.insert(run.train_length());
    const double length = number_at(*summary, "/settings/length");  // NaN: of earlier results
    for (const json& point : list_at(*summary, "/series/documents")) {
      const double tokens = number_at(point, "/context") + (std::isnan(length) ? 0 : length);
      axis.longest = std::fmax(axis.longest, tokens);
      values.push_back({{"run", run.name},
                        {"tokens", tokens},
                        {"documents", number_at(point, "/documents")},
                        {"perplexity", rounded(number_at(point, "/perplexity"))}});
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(240);
  json x = quantitative("tokens", "tokens with the documents before");
  x["axis"] = {{"format", ",d"}};
  json y = quantitative("perplexity", "perplexity of the last document");
  y["scale"] = {{"zero", false}};
  json encoding{{"x", x}, {"y", y}};
  encoding.update(line_channels(names_of(runs)));
  spec["layer"] = {{{"data", {{"values", values}}},
                    {"mark", {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 30}}}}},
                    {"encoding", encoding}}};
  for (json& mark : training_length_marks(trained, axis)) {
    spec["layer"].push_back(std::move(mark));
  }
  return Figure{"document_perplexity",
                "Do other documents disturb?",
                "Perplexity of the same documents with more and more unrelated documents before "
                "them. Flat: they do no harm. Rising: the model is distracted by what does not "
                "belong to the text, or, right of the length trained on, by the length itself.",
                spec};
}

std::optional<Figure> memory_perplexity(const Runs& runs) {
  json values = json::array();
  std::vector<std::string> names;
  std::map<std::string, std::string> name_of_model;
  std::set<double> sizes;
  for (const RunResults& run : runs) {
    const json* summary = run.evaluation("perplexity");
    if (!summary) continue;
    // -1: none at all; 0: everything, which is no number.
    const double tokens = number_at(*summary, "/identity/memory/tokens");
    const double perplexity = number_at(*summary, "/metrics/windowed_perplexity");
    if (std::isnan(tokens) || tokens == 0 || std::isnan(perplexity)) continue;
    const std::string model = text_at(*summary, "/identity/model");
    if (!name_of_model.contains(model)) {
      // Several runs are one line, named as their model is where no other line is.
      const bool is_taken = std::ranges::find(names, run.model_name) != names.end();
      names.push_back(is_taken || run.model_name.empty() ? run.name : run.model_name);
      name_of_model[model] = names.back();
    }
    sizes.insert(std::max(tokens, 0.0));
    values.push_back({{"run", name_of_model[model]},
                      {"tokens", std::max(tokens, 0.0)},
                      {"perplexity", rounded(perplexity)}});
  }
  if (sizes.size() < 2) return {};
  json spec = base_spec(260);
  spec["data"] = {{"values", values}};
  json x = quantitative("tokens", "tokens of memory (logarithmic but for its begin)");
  x["axis"] = {{"format", ",d"}, {"values", sizes}, {"labelFlush", 8}};
  x["scale"] = {{"type", "symlog"}, {"constant", 256}, {"nice", false}};
  json y = quantitative("perplexity", "perplexity");
  y["scale"] = {{"zero", false}};
  spec["encoding"] = {{"x", x}, {"y", y}};
  spec["encoding"].update(line_channels(names));
  spec["layer"] = {{{"mark", {{"type", "line"}, {"tooltip", true}, {"point", {{"size", 30}}}}}}};
  return Figure{
      "memory_perplexity",
      "What is a longer memory worth?",
      "Perplexity of the same text, read with a memory of so many of its newest tokens. "
      "Falling: the model finds what it can use. Rising: more keys disturb more than they "
      "help. At 0 every context is read by itself.",
      spec};
}

namespace {

// Tasks whose scores are a map of two keys.
const std::vector<ScoreMap>& score_maps() {
  static const std::vector<ScoreMap> maps = {
      {"needle",
       "length",
       "depth",
       "needle in a haystack",
       "length of the text (tokens)",
       "depth (% of the text before the sentence)",
       "One sentence is hidden in a long text and asked for at its end. Green: the answer has it; "
       "red: not. A model that only knows what is near has green at the bottom alone."},
      {"ruler",
       "length",
       "task",
       "RULER",
       "length with answer (tokens)",
       "task",
       "Mean score per task and length. niah: find planted values; vt: follow variable "
       "assignments; cwe, fwe: most frequent words; qa: questions about documents. Rows that "
       "turn red to the "
       "right show what breaks first with length."},
      {"babilong",
       "length",
       "task",
       "BABILong",
       "length of the prompt (tokens)",
       "task",
       "Questions about facts that are spread over other text. qa1 needs one fact, qa2 two, qa3 "
       "three; qa4 and qa5 are relations of two and three things. About one in six answers is "
       "right "
       "by chance."},
      {"longbench",
       "words",
       "task",
       "LongBench",
       "length of the text (words)",
       "task",
       "Mean score per task and length of the text: F1 for questions, ROUGE-L for summaries, "
       "share of the right class, similarity of a line of code. Only the same row compares with "
       "published "
       "numbers; rows that turn red to the right show what length costs."},
      {"lm_eval",
       "metric",
       "task",
       "lm-evaluation-harness",
       "metric",
       "task",
       "Accuracies of the harness's tasks, on short texts: what a model knows and how it "
       "reasons, not "
       "what it remembers. Compare with the chance of each task."},
  };
  return maps;
}

// Tasks whose scores are lines by length.
const std::vector<ScoreLines>& score_lines_of_tasks() {
  static const std::vector<ScoreLines> lines = {
      {"passkey",
       "length",
       "Passkey retrieval",
       "length of the prompt (tokens, log scale)",
       "Share of prompts after which the model repeats a number that was hidden in filler text; "
       "bars are one standard error. A model that finds it at any distance stays at 100 %."},
      {"dictionary",
       "length",
       "Dictionary lookup",
       "tokens of definitions (log scale)",
       "Share of looked-up values of which all tokens are right; bars go from the worst dictionary "
       "to the best. Only models trained on dictionaries do this at all; a memory that holds stays "
       "at 100 % past the training length."},
      {"few_shot",
       "length",
       "Learning from examples in the context",
       "tokens of examples and question (log scale)",
       "Accuracy on questions after as many solved examples as fit; bars are one standard error "
       "over draws of examples. A model that uses its context gets better with more of them."},
  };
  return lines;
}

}  // namespace

std::vector<Figure> score_figures(const Runs& runs) {
  std::vector<Figure> figures;
  const auto keep = [&](std::optional<Figure> figure) {
    if (figure) figures.push_back(std::move(*figure));
  };
  for (const ScoreMap& map : score_maps()) {
    for (size_t i = 0; i < runs.size(); ++i) keep(score_map(runs[i], i, map));
  }
  for (const ScoreLines& lines : score_lines_of_tasks()) keep(score_lines(runs, lines));
  keep(document_perplexity(runs));
  keep(memory_perplexity(runs));
  return figures;
}

}  // namespace reynard::report
