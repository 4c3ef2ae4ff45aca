#pragma once
// A published checkpoint layout: config.json <-> DecoderConfig, tensor names <-> parameters. Each
// is one file of this folder that fills this struct; registry.cpp lists them.

#include "reynard/models/decoder_config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace reynard::models {

// A published tensor that holds `rows` consecutive rows (dimension 0) of one of our parameters.
struct Piece {
  std::string name;
  int64_t rows;
};

class JsonFields;

struct Family {
  std::string_view model_type;  // of config.json, where `architecture` names the published class
  std::string_view architecture;
  // The keys that this layout has beside those of all (layout.cpp). Throws reynard::Error for a
  // value that the layout knows and we do not support.
  void (*read_keys)(const JsonFields& fields, DecoderConfig& config);
  void (*write_keys)(const DecoderConfig& config, nlohmann::ordered_json& json);
  // Why the layout cannot express this config; empty when it can.
  std::string (*obstacle)(const DecoderConfig& config);
  // What of this config only this program reads in the layout: the published code has a key for it
  // that it ignores or rejects. Empty: nothing; null: no such key.
  std::string (*ignored_key)(const DecoderConfig& config) = nullptr;
  // The published tensors that make up our parameter, in the order of its rows.
  std::vector<Piece> (*pieces)(const std::string& name, int64_t rows);
  // Published tensors with this ending carry nothing: buffers that old versions saved; empty: none.
  std::string_view ignored_ending = {};

  bool ignores(std::string_view published_name) const {
    return !ignored_ending.empty() && published_name.ends_with(ignored_ending);
  }
};

// file: name of config.json in messages. Throws reynard::Error for what is missing, of the wrong
// type, unsupported or impossible.
DecoderConfig read_config(const Family& family,
                          const nlohmann::json& json,
                          const std::string& file);
// For how many positions the model was made, which limits nothing here; other programs go by it.
std::optional<int64_t> read_max_positions(const Family& family,
                                          const nlohmann::json& json,
                                          const std::string& file);
// max_positions: written where the layout does not derive the number from the config.
nlohmann::ordered_json write_config(const Family& family,
                                    const DecoderConfig& config,
                                    std::optional<int64_t> max_positions = {});
// What of this config the layout's published code would not know, though it can be written and read
// here; empty: nothing.
std::string own_setting(const Family& family, const DecoderConfig& config);

extern const Family kForgettingTransformer;     // FoX authors: forgetting_transformer-project_fox
extern const Family kTransformer;               // FoX authors' baseline: transformer-project_fox
extern const Family kFlaForgettingTransformer;  // flash-linear-attention: forgetting_transformer
extern const Family kFlaTransformer;            // flash-linear-attention: transformer
extern const Family kLlama;                     // Hugging Face: llama
extern const Family kMistral;                   // Hugging Face: mistral
extern const Family kQwen2;                     // Hugging Face: qwen2
extern const Family kQwen3;                     // Hugging Face: qwen3
extern const Family kLongLlama;                 // Focused Transformer authors: longllama

}  // namespace reynard::models
