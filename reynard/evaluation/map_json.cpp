#include "reynard/evaluation/map_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace reynard::evaluation {

nlohmann::json short_number(double value, int digits) {
  return nlohmann::json::parse(fmt::format("{:.{}g}", value, digits));
}

nlohmann::json rows_of(const at::Tensor& values) {
  const at::Tensor v = values.to(at::kFloat).contiguous();
  const float* x = v.const_data_ptr<float>();
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t h = 0; h < v.size(0); ++h) {
    nlohmann::json row = nlohmann::json::array();
    for (int64_t i = 0; i < v.size(1); ++i) row.push_back(short_number(x[h * v.size(1) + i], 4));
    rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::json integer_rows(const at::Tensor& values) {
  const at::Tensor v = values.to(at::kLong).contiguous();
  const int64_t* x = v.const_data_ptr<int64_t>();
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t h = 0; h < v.size(0); ++h) {
    rows.push_back(std::vector<int64_t>(x + h * v.size(1), x + (h + 1) * v.size(1)));
  }
  return rows;
}

nlohmann::json triangle(const at::Tensor& map) {
  const at::Tensor m = map.to(at::kFloat).contiguous();
  const int64_t cells = m.size(0);
  const float* x = m.const_data_ptr<float>();
  nlohmann::json values = nlohmann::json::array();
  for (int64_t a = 0; a < cells; ++a) {
    for (int64_t b = 0; b <= a; ++b) values.push_back(short_number(x[a * cells + b], 3));
  }
  return values;
}

nlohmann::json triangles(const at::Tensor& maps) {
  nlohmann::json heads = nlohmann::json::array();
  for (int64_t h = 0; h < maps.size(0); ++h) heads.push_back(triangle(maps[h]));
  return heads;
}

std::string visible(std::string text) {
  if (text == " ") return "·";
  if (text == "\n") return "⏎";
  if (text == "\t") return "→";
  const bool printable = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
  return printable ? text : "□";
}

}  // namespace reynard::evaluation
