#pragma once
// How a comparison looks on the page: a table of differences in words, and a figure.

#include "reynard/report/compare.h"
#include "reynard/report/figure.h"

#include <optional>
#include <string>

namespace reynard::report {

// A section with one row per difference. All text from outside is escaped.
std::string differences_section(const Comparison& comparison, const Runs& runs);

// Differences with their intervals, of scores in points and of losses in percent of the first run's
// mean; nothing without differences. What has no percentage is named in the caption.
std::optional<Figure> difference_figure(const Comparison& comparison, const Runs& runs);

}  // namespace reynard::report
