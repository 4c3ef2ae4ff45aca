#pragma once
// One self-contained HTML page from the results of any number of runs: verdict, table, figures,
// text samples, and the commands to repeat it. It opens without a network.

#include "reynard/report/compare.h"
#include "reynard/report/figure.h"
#include "reynard/report/html_page.h"

#include <string>
#include <string_view>
#include <vector>

namespace reynard::report {

struct PageOptions {
  FigureOptions figures = {};
  int64_t tokens_to_copy = 0;              // see VerdictOptions
  const Comparison* comparison = nullptr;  // shown first, where there is one
  std::string command = {};                // with which the page was made; shown at its end
};

// The sections of the page that have figures, in their order.
std::vector<FigureGroup> figure_groups(const Runs& runs, const FigureOptions& options);

// vega_javascript: a bundle that defines window.vegaEmbed.
std::string page(const Runs& runs, const PageOptions& options, std::string_view vega_javascript);

}  // namespace reynard::report
