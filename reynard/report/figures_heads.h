#pragma once
// Figures of single numbers per attention head, from what `reynard inspect` wrote: how far heads
// look, their gates, and what pruning skips.

#include "reynard/report/figure.h"

#include <optional>

#include <nlohmann/json.hpp>

namespace reynard::report {

std::optional<Figure> head_reach(const nlohmann::json& inspection);
std::optional<Figure> gate_histograms(const nlohmann::json& inspection);
// Heads by the share of their attention that pruning skips, in 20 bins.
std::optional<Figure> pruned_histogram(const nlohmann::json& inspection);
std::optional<Figure> pruned_by_layer(const nlohmann::json& inspection);
// Loss and skipped attention by the pruning tolerance.
std::optional<Figure> sweep_loss(const nlohmann::json& inspection);
std::optional<Figure> sweep_pruning(const nlohmann::json& inspection);

}  // namespace reynard::report
