#pragma once
// What several published layouts have in common.

#include "reynard/models/decoder_config.h"
#include "reynard/models/families/family.h"
#include "reynard/models/families/json_fields.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::models {

// Keys that the FoX authors' and FLA's configs share, beyond those of every layout.
void read_fox_keys(const JsonFields& fields, DecoderConfig& config);
void write_fox_keys(const DecoderConfig& config, nlohmann::ordered_json& json);

// What stands in a layout's way, one after the other: the texts of the conditions that hold, then
// what others found.
struct Obstacle {
  bool holds;
  std::string_view what;
};
std::string all_obstacles(std::initializer_list<Obstacle> obstacles,
                          const std::string& others = "");

// text with `from` replaced by `to` at its first place, if it is there.
std::string replaced(std::string text, std::string_view from, std::string_view to);

// A parameter that is one published tensor of the same name.
std::vector<Piece> same_name(const std::string& name, int64_t rows);

// Layouts with separate tensors for the two halves of our fused mlp.gate_proj.weight.
bool is_gate_and_up(std::string_view name);
std::vector<Piece> gate_and_up(const std::string& name, int64_t rows);

}  // namespace reynard::models
