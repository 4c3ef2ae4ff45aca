#include "reynard/report/figure.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/run_look.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace reynard::report {

namespace {

constexpr size_t kMostPositions = 400;  // of one line

std::vector<double> series_of(const RunResults& run, const std::string& key) {
  std::vector<double> values;
  const json* summary = run.evaluation("per_position_loss");
  if (!summary) return values;
  for (const json& x : list_at(*summary, "/series/" + key))
    values.push_back(x.is_number() ? x.get<double>() : std::nan(""));
  return values;
}

// The first positions have hardly any context; their loss would set the scale of the whole figure.
// The same of all runs, of which the shortest is not to vanish.
int64_t first_shown(const Runs& runs) {
  size_t first = 128;
  for (const RunResults& run : runs) {
    const size_t length = series_of(run, "loss").size();
    if (length > 0) first = std::min(first, length / 16);
  }
  return static_cast<int64_t>(first);
}

void mark_training_lengths(const Runs& runs, json& spec) {
  std::set<int64_t> lengths;
  double longest = 0;
  for (const RunResults& run : runs) {
    if (run.train_length() > 0) lengths.insert(run.train_length());
    longest = std::max(longest, static_cast<double>(series_of(run, "loss").size()));
  }
  for (json& mark : training_length_marks(lengths, {longest})) {
    spec["layer"].push_back(std::move(mark));
  }
}

// Half widths of 95 % intervals; of results that have standard errors only, about that.
// Empty where they are those of a mean over another number of positions.
std::vector<double> half_widths(const RunResults& run, int64_t smoothing_window) {
  const json* summary = run.evaluation("per_position_loss");
  const double window =
      summary ? number_at(*summary, "/series/standard_error_window") : std::nan("");
  if (!std::isnan(window) && window != static_cast<double>(smoothing_window)) return {};
  std::vector<double> widths = series_of(run, "half_width");
  if (widths.empty()) {
    widths = series_of(run, "standard_error");
    for (double& x : widths) x *= 1.96;
  }
  return widths;
}

// The fitted lines of a run, as points of a dashed line each.
void add_slopes(const RunResults& run, json& values) {
  const json* summary = run.evaluation("per_position_loss");
  if (!summary) return;
  for (const json& fit : list_at(*summary, "/metrics/slopes")) {
    const double from = number_at(fit, "/from");
    const double to = number_at(fit, "/to");
    const double first = number_at(fit, "/loss_from");
    const double rise = number_at(fit, "/loss_to") - first;
    for (int i = 0; i <= 24; ++i) {  // straight over log i, bent over i
      const double share = i / 24.0;
      values.push_back({{"run", run.name},
                        {"fit", fmt::format("{} {}", run.name, from)},
                        {"position", rounded(from * std::pow(to / from, share))},
                        {"fitted", rounded(first + rise * share)}});
    }
  }
}

// Of one row the intervals are not known.
std::string slopes_note(const RunResults& run) {
  const json* summary = run.evaluation("per_position_loss");
  if (!summary) return "";
  std::string note;
  for (const json& fit : list_at(*summary, "/metrics/slopes")) {
    const double half_width = number_at(fit, "/half_width");
    note += fmt::format("{}{:+.3f}{} from {} to {}",
                        note.empty() ? "" : ", ",
                        number_at(fit, "/slope"),
                        std::isnan(half_width) ? "" : fmt::format(" ± {:.3f}", half_width),
                        grouped(static_cast<int64_t>(number_at(fit, "/from"))),
                        grouped(static_cast<int64_t>(number_at(fit, "/to"))));
  }
  return note.empty() ? "" : fmt::format(" {}: {}.", run.name, note);
}

std::string slopes_of_all(const Runs& runs) {
  std::string slopes;
  for (const RunResults& run : runs) slopes += slopes_note(run);
  if (slopes.empty()) return "";
  const bool has_intervals = slopes.find(" ± ") != std::string::npos;
  return fmt::format(
      " Dashed: lines fitted over log i; slopes in nats per doubling of the context{}.{}",
      has_intervals ? ", with 95 % intervals" : "",
      slopes);
}

// What the rows of a run are.
std::string rows_note(const json& summary) {
  const bool across = bool_at(summary, "/settings/across_documents", false);
  const bool rolled = bool_at(summary, "/settings/rolled", false);
  return fmt::format(
      "{}, {}, {}",
      grouped(static_cast<int64_t>(number_at(summary, "/metrics/rows")), "held-out row"),
      across ? "cut from the whole text across documents"
             : "each a piece of one document that begins at a random place in it",
      rolled ? "rolled (rotated by a random number of tokens)" : "not rolled");
}

// Of all runs; whose they are is said where they differ.
std::string rows_note(const Runs& runs) {
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;  // with the runs' names
  for (const RunResults& run : runs) {
    const json* summary = run.evaluation("per_position_loss");
    if (!summary) continue;
    const std::string note = rows_note(*summary);
    auto known = std::ranges::find(notes, note, [](const auto& of_runs) { return of_runs.first; });
    if (known == notes.end()) known = notes.emplace(known, note, std::vector<std::string>());
    known->second.push_back(run.name);
  }
  if (notes.size() == 1) return notes.front().first + ".";
  std::string all;
  for (const auto& [note, names] : notes) {
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", fmt::join(names, ", "), note);
  }
  return all + ".";
}

// Which of the runs that these points are of have bands.
std::string bands_note(const json& points) {
  std::vector<std::string> with, without;  // in the order of the runs
  for (const json& point : points) {
    const auto name = point.at("run").get<std::string>();
    std::vector<std::string>& names = point.contains("low") ? with : without;
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  // A run may lack them at some positions.
  std::erase_if(without, [&](const auto& name) { return std::ranges::count(with, name) > 0; });
  if (with.empty()) return "without intervals over rows";
  if (without.empty()) return "bands are 95 % intervals over rows";
  return fmt::format("bands are 95 % intervals over rows ({} {} none)",
                     fmt::join(without, ", "),
                     without.size() == 1 ? "has" : "have");
}

// One point {run, position, loss, low, high} for each position that is drawn.
json loss_points(const Runs& runs, int64_t first, int64_t smoothing_window) {
  json values = json::array();
  for (const RunResults& run : runs) {
    const std::vector<double> loss = smoothed(series_of(run, "loss"), smoothing_window);
    const std::vector<double> width = half_widths(run, smoothing_window);
    for (const size_t i : thinned(loss.size(), kMostPositions)) {
      if (static_cast<int64_t>(i) < first || std::isnan(loss[i])) continue;
      json point{{"run", run.name}, {"position", i + 1}, {"loss", rounded(loss[i])}};
      if (i < width.size() && !std::isnan(width[i])) {
        point["low"] = rounded(loss[i] - width[i]);
        point["high"] = rounded(loss[i] + width[i]);
      }
      values.push_back(std::move(point));
    }
  }
  return values;
}

}  // namespace

std::optional<Figure> loss_by_position(const Runs& runs, const FigureOptions& options) {
  const int64_t first = first_shown(runs);
  json values = loss_points(runs, first, options.smoothing_window);
  if (values.empty()) return {};
  const std::string bands = bands_note(values);
  for (const RunResults& run : runs) add_slopes(run, values);
  const std::vector<std::string> names = names_of(runs);
  const json color = color_encoding(names);
  json spec = base_spec(340);
  spec["data"] = {{"values", values}};
  json x = quantitative("position", "position i in the row (tokens of context)");
  x["axis"] = {{"format", ",d"}};
  x["scale"] = {{"nice", false}, {"zero", true}};
  json y = quantitative("loss", "loss L(i) (nats per token)");
  y["scale"] = {{"zero", false}};
  json low = quantitative("low", "loss L(i) (nats per token)");
  json line{{"x", x}, {"y", y}};
  line.update(line_channels(names));
  spec["layer"] = {
      {{"transform", {{{"filter", "isValid(datum.low)"}}}},
       {"mark", {{"type", "area"}, {"opacity", 0.15}}},
       {"encoding", {{"x", x}, {"y", low}, {"y2", {{"field", "high"}}}, {"color", color}}}},
      {{"transform", {{{"filter", "isValid(datum.loss)"}}}},
       {"mark", {{"type", "line"}, {"tooltip", true}}},
       {"encoding", line}},
      {{"transform", {{{"filter", "isValid(datum.fitted)"}}}},
       {"mark", {{"type", "line"}, {"strokeDash", {4, 3}}, {"strokeWidth", 1.4}}},
       {"encoding",
        {{"x", x},
         {"y", quantitative("fitted", "loss L(i) (nats per token)")},
         {"detail", {{"field", "fit"}, {"type", "nominal"}}},
         {"color", color}}}}};
  mark_training_lengths(runs, spec);
  return Figure{
      "loss_by_position",
      "Loss by position",
      fmt::format(
          "Mean loss of the token at each position, smoothed by a centred mean over {} positions, "
          "from position {}; {}. {} A curve that still falls uses context that far back. Past the "
          "length trained on, a model that extrapolates stays "
          "flat; one that does not turns up.{}",
          options.smoothing_window,
          first + 1,
          bands,
          rows_note(runs),
          slopes_of_all(runs)),
      spec};
}

std::optional<Figure> perplexity_by_length(const Runs& runs) {
  json values = json::array();
  const int64_t first = first_shown(runs);
  for (const RunResults& run : runs) {
    const std::vector<double> perplexity = series_of(run, "perplexity");
    const std::vector<double> width = series_of(run, "log_perplexity_half_width");
    for (const size_t i : thinned(perplexity.size(), kMostPositions)) {
      if (static_cast<int64_t>(i) < first || std::isnan(perplexity[i])) continue;
      json point{{"run", run.name}, {"length", i + 1}, {"perplexity", rounded(perplexity[i])}};
      if (i < width.size() && !std::isnan(width[i])) {
        point["low"] = rounded(perplexity[i] * std::exp(-width[i]));
        point["high"] = rounded(perplexity[i] * std::exp(width[i]));
      }
      values.push_back(std::move(point));
    }
  }
  if (values.empty()) return {};
  json spec = base_spec(260);
  spec["data"] = {{"values", values}};
  json x = quantitative("length", "length l of the row (tokens)");
  x["axis"] = {{"format", ",d"}};
  x["scale"] = {{"nice", false}, {"zero", true}};
  json y = quantitative("perplexity", "perplexity P(l)");
  y["scale"] = {{"zero", false}};
  const json low = quantitative("low", "perplexity P(l)");
  const std::vector<std::string> names = names_of(runs);
  const json color = color_encoding(names);
  json line{{"x", x}, {"y", y}};
  line.update(line_channels(names));
  spec["layer"] = {
      {{"transform", {{{"filter", "isValid(datum.low)"}}}},
       {"mark", {{"type", "area"}, {"opacity", 0.15}}},
       {"encoding", {{"x", x}, {"y", low}, {"y2", {{"field", "high"}}}, {"color", color}}}},
      {{"mark", {{"type", "line"}, {"tooltip", true}}}, {"encoding", line}}};
  mark_training_lengths(runs, spec);
  return Figure{
      "perplexity",
      "Perplexity by length",
      fmt::format(
          "Perplexity of the first l tokens of a row, P(l) = exp of the mean of L(1) to L(l), "
          "not smoothed; {}. It keeps falling after L(i) is flat, because it averages the "
          "beginning in: read the use of context from the figure above.",
          bands_note(values)),
      spec};
}

}  // namespace reynard::report
