#pragma once
// What the Hugging Face layouts of the Llama family have in common: keys of config.json and names
// of tensors.

#include "reynard/models/families/family.h"
#include "reynard/models/families/json_fields.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace reynard::models {

// Throws reynard::Error for MLP biases and other activations.
void read_llama_keys(const JsonFields& fields, DecoderConfig& config);
void write_llama_keys(const DecoderConfig& config, nlohmann::ordered_json& json);
// The window of Qwen: of all layers or of none; a mixture is an error.
void read_layer_windows(const JsonFields& fields, DecoderConfig& config);
void write_layer_windows(const DecoderConfig& config, nlohmann::ordered_json& json);
// Why a plain Llama cannot be this model, whatever its window and its biases of q, k and v; empty
// when it can.
std::string llama_obstacle(const DecoderConfig& config);
std::vector<Piece> llama_pieces(const std::string& name, int64_t rows);

}  // namespace reynard::models
