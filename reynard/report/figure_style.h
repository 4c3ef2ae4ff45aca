#pragma once
// What all figures share: the theme, axes, and marked positions.

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {

using json = nlohmann::json;

inline constexpr std::string_view kCopyColor = "#d97706";
inline constexpr std::string_view kLmColor = "#2563eb";

// A specification with schema, theme and size. Text takes the colour of the page, so that it reads
// on light and dark alike.
json base_spec(int height);

// For figures of several panels, whose sizes are their own, and of many small marks: drawn on a
// canvas, with colours that read on light and dark.
json panels_spec();

json quantitative(std::string_view field, std::string_view title);

// A dashed vertical line with a label at its top.
struct MarkStyle {
  std::string_view color = "";  // empty: that of text
  bool label_left = false;      // the label stands left of the line: for lines near the right edge
  int row = 0;                  // lines of text that the label stands lower, to pass another one
};
json marked_position(double x, std::string_view label, const MarkStyle& style = {});

// An axis of lengths, as far as its marks need to know it.
struct LengthAxis {
  double longest = 0;
  double shortest = 0;  // above 0: a log scale that begins there; 0: linear from 0
};
// Lines at each training length and at 2, 4, 8 ... times that length, up to the longest: what lies
// to the right of the first is extrapolated. Multiples whose labels would run into each other are
// left out, the largest one never; of several lengths the labels say which is meant ("4 × 128").
// None where the training length is 0 (unknown).
std::vector<json> training_length_marks(const std::set<int64_t>& trained, const LengthAxis& axis);

// Every value to at most `digits` significant digits, so that pages stay small.
double rounded(double value, int digits = 5);

// Indices 0 ... size - 1, thinned evenly to at most `most`, the last one kept.
std::vector<size_t> thinned(size_t size, size_t most);

// 16384 -> "16,384"; 1.23e9 -> "1.23 G".
std::string grouped(int64_t value);
// "1 row", "1,024 rows". noun: its singular, whose plural ends in s.
std::string grouped(int64_t value, std::string_view noun);
std::string with_unit(double value);

}  // namespace reynard::report
