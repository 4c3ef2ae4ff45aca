#pragma once
// How runs are told apart, in figures and beside their names: eight colours, each for a solid line,
// then for lines that are dashed in three ways. Looks repeat after 32 runs.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {

// The colour of the run at this place in their order; the same again after eight.
std::string run_color(size_t index);
// The mark beside a run's name, in HTML: a square, or a piece of its line where that is dashed.
std::string run_swatch(size_t index);

// The colour of the field "run" of these names in a Vega-Lite encoding: for areas, and for marks
// beside lines that say whose they are.
nlohmann::json color_encoding(const std::vector<std::string>& names);
// Channels of an encoding of lines: "color", and with more than eight names "strokeDash", or where
// dashes mean something else "opacity".
enum class SecondChannel { kDash, kOpacity };
nlohmann::json line_channels(const std::vector<std::string>& names,
                             SecondChannel second = SecondChannel::kDash);

// Leaves in the legends of a figure's runs those that it has data of; colours stay.
void list_drawn_runs(nlohmann::json& spec);

}  // namespace reynard::report
