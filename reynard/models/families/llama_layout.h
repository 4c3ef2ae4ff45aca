#pragma once
// What the Hugging Face layouts of the Llama family have in common: keys of config.json and names
// of tensors.

#include "reynard/models/families/family.h"
#include "reynard/models/families/json_fields.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::models {

// Throws reynard::Error for MLP biases and other activations.
void read_llama_keys(const JsonFields& fields, DecoderConfig& config);
void write_llama_keys(const DecoderConfig& config, nlohmann::ordered_json& json);
// "sliding_window" of the Mistral and Qwen classes: absent it is their default, null means none
// (0).
int64_t read_sliding_window(const JsonFields& fields);
// The window of Qwen: of all layers or of none; a mixture is an error.
void read_layer_windows(const JsonFields& fields, DecoderConfig& config);
void write_layer_windows(const DecoderConfig& config, nlohmann::ordered_json& json);
// Why a plain Llama cannot be this model, whatever its window and its biases of q, k and v; empty
// when it can.
std::string llama_obstacle(const DecoderConfig& config);
std::vector<Piece> llama_pieces(const std::string& name, int64_t rows);

// A layout with Llama's tensors.
constexpr Family llama_family(std::string_view model_type,
                              std::string_view architecture,
                              decltype(Family::read_keys) read_keys,
                              decltype(Family::write_keys) write_keys,
                              decltype(Family::obstacle) obstacle) {
  return {.model_type = model_type,
          .architecture = architecture,
          .read_keys = read_keys,
          .write_keys = write_keys,
          .obstacle = obstacle,
          .pieces = llama_pieces,
          .ignored_ending = "rotary_emb.inv_freq"};
}

}  // namespace reynard::models
