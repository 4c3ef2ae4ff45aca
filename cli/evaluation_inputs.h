#pragma once
// What `reynard eval` measures on: the model that a path names, and the text as a corpus.

#include "reynard/evaluation/corpus.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::models {
struct DecoderConfig;
}

namespace reynard::cli {

// A model folder, or a run folder that holds one (model/, or its newest checkpoint).
struct ModelFolder {
  std::filesystem::path model;  // config.json, model.safetensors
  std::filesystem::path run;    // the run it belongs to; empty: none
  nlohmann::json run_json = nlohmann::json::object();
  std::string name;  // of the run, or of the folder

  std::string identity() const;           // digest of configuration and weights, all of them read
  int64_t train_length() const;           // 0: unknown
  std::filesystem::path results() const;  // where results go by default
};
// Throws reynard::Error when there is no model there.
ModelFolder find_model(const std::filesystem::path& path);

// Digest of the files in a model folder that decide what the model computes.
std::string identity_of(const std::filesystem::path& model);

// What may name a folder: letters, digits and a few marks of a name that others gave.
std::string as_folder_name(std::string name);

// A corpus with the file that its tokens are read from.
struct TextCorpus {
  evaluation::Corpus corpus;
  std::string name;      // of the file or folder
  std::string identity;  // digest of the tokens
  std::shared_ptr<const void> storage;
};
// One text, and any number of NAME=FILE that become its `others`. A file is a token file, or text
// as `reynard prepare` takes it. BOS and EOS are those of the model's configuration; a model
// trained by this program without them there uses those of its token files. Throws reynard::Error
// unless exactly one text has no name. tokenizer: instead of the one in the model's folder; empty:
// none was named.
TextCorpus open_texts(const std::vector<std::string>& texts,
                      const ModelFolder& folder,
                      const models::DecoderConfig& model,
                      const std::string& tokenizer);

// What a text must fit to, whatever runs the model.
struct TextNeeds {
  std::string tokenizer;   // for text that is no token file; empty: none is known
  std::string owner;       // of the tokenizer, for messages
  int64_t vocab_size = 0;  // of the model; 0: unknown
  std::optional<int64_t> bos, eos;
  // Where the model has none, that of the token file.
  bool bos_of_text = false, eos_of_text = false;
};
TextCorpus open_texts(const std::vector<std::string>& texts, const TextNeeds& needs);

}  // namespace reynard::cli
