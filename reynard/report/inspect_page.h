#pragma once
// One self-contained page of what `reynard inspect` found: how far heads look, their gates, what
// pruning skips, and maps. It reads the result's JSON only (docs/formats.md), so old results stay
// readable.

#include "reynard/report/html_page.h"

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {

struct InspectPageOptions {
  double threshold = 1e-4;  // attention and decay below are left blank in the maps of single heads
};

// What the numbers say, one sentence each.
std::vector<std::string> inspection_findings(const nlohmann::json& inspection);

std::vector<FigureGroup> inspection_figures(const nlohmann::json& inspection,
                                            const InspectPageOptions& options = {});

std::string inspect_page(const nlohmann::json& inspection,
                         const InspectPageOptions& options,
                         std::string_view vega_javascript);

}  // namespace reynard::report
