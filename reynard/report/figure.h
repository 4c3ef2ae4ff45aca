#pragma once
// Figures are Vega-Lite specifications with their data inside; one function per figure makes it
// from the results of the runs, or gives nothing where no run has them.

#include "reynard/report/run_results.h"

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {

struct Figure {
  std::string id;       // of the element and the PNG file: "loss_by_position"
  std::string title;    // plain text
  std::string caption;  // plain text: what it shows and what one should see
  nlohmann::json spec;  // Vega-Lite
};

struct FigureOptions {
  int64_t smoothing_window = 101;  // odd: positions of the mean in loss by position; 1: none
};

using Runs = std::vector<RunResults>;

std::vector<std::string> names_of(const Runs& runs);

std::optional<Figure> training_loss(const Runs& runs);
std::optional<Figure> training_speed(const Runs& runs);
std::optional<Figure> gate_saturation(const Runs& runs);

std::optional<Figure> loss_by_position(const Runs& runs, const FigureOptions& options);
std::optional<Figure> perplexity_by_length(const Runs& runs);

std::optional<Figure> forgetting_curve(const RunResults& run, size_t index);
std::optional<Figure> curve_perplexity(const RunResults& run, size_t index);
std::optional<Figure> curve_targets(const RunResults& run, size_t index);
std::optional<Figure> curve_prefixes(const RunResults& run, size_t index);

std::optional<Figure> forget_gates(const RunResults& run, size_t index);
std::optional<Figure> decay_maps(const RunResults& run, size_t index);
std::optional<Figure> attention_maps(const RunResults& run, size_t index);
// Attention on the right one of many documents: by their number, and per head at the largest.
std::optional<Figure> attention_mass(const RunResults& run, size_t index);
std::optional<Figure> attention_mass_heads(const RunResults& run, size_t index);
std::optional<Figure> pruned_share(const RunResults& run, size_t index);

// A map of scores over two settings of a task, one run; the averages come from "series/groups".
struct ScoreMap {
  std::string task;  // also the figure's id, with the run's number
  std::string x, y;  // keys of the averages
  std::string title, x_title, y_title, caption;
};
std::optional<Figure> score_map(const RunResults& run, size_t index, const ScoreMap& map);

// Scores by length, one line per run.
struct ScoreLines {
  std::string task;  // also the figure's id
  std::string x;     // key of the averages
  std::string title, x_title, caption;
};
std::optional<Figure> score_lines(const Runs& runs, const ScoreLines& lines);

// The main metrics of a run's checkpoints by the tokens seen, one figure each.
std::vector<Figure> checkpoint_figures(const Runs& runs);

// Perplexity of a document after others, by the tokens before it.
std::optional<Figure> document_perplexity(const Runs& runs);
// One line per model whose text was read with memories of several sizes.
std::optional<Figure> memory_perplexity(const Runs& runs);

// All figures of tasks that ask for something said in a long text.
std::vector<Figure> score_figures(const Runs& runs);

// Puts a figure behind the others, where there is one.
void keep(std::vector<Figure>& figures, std::optional<Figure> figure);

// Centred mean over `window` positions, shrinking at the ends; NaN stays out of the means. Throws
// reynard::Error for a window that is even or below 1.
std::vector<double> smoothed(const std::vector<double>& values, int64_t window);

}  // namespace reynard::report
