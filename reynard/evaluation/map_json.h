#pragma once
// Maps and gates of attention layers as JSON: short numbers, lower triangles, tokens that a reader
// can see.

#include <ATen/core/Tensor.h>

#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

nlohmann::json short_number(double value, int digits);
// (H, N) -> list of lists, four digits each.
nlohmann::json rows_of(const at::Tensor& values);
// (H, N) integers -> list of lists.
nlohmann::json integer_rows(const at::Tensor& values);
// (cells, cells) -> the lower triangle, row by row, three digits each.
nlohmann::json triangle(const at::Tensor& map);
// (H, cells, cells) -> the same per head.
nlohmann::json triangles(const at::Tensor& maps);

// One token as a reader sees it: spaces and line ends visible, no control characters.
std::string visible(std::string text);

}  // namespace reynard::evaluation
