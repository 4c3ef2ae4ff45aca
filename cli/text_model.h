#pragma once
// A model with its tokenizer: what generate, chat and serve open.

#include "cli/memory_options.h"
#include "reynard/generation/chat_template.h"
#include "reynard/models/decoder.h"
#include "reynard/tokenizer/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace reynard::cli {

struct TextModelArguments {
  std::string model;
  std::string tokenizer;  // empty: that of the model's folder
  std::string dtype = "f32", device = "auto";
  std::optional<double> log_tolerance;  // empty: the model's
  bool evict_measured = false;
  bool int8_cache = false;
  MemoryArguments memory;
};
void add_options(CLI::App& command, TextModelArguments& arguments);

struct TextModel {
  models::Decoder decoder;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::filesystem::path folder;     // config.json's
  std::string name;                 // of its folder
  std::vector<int64_t> stop;        // tokens that end a text
  bool uses_template = false;       // prompts get what the tokenizer puts around a text ...
  std::optional<int64_t> bos = {};  // ... or begin with this
  // What every text begins with in its memories; null: nothing.
  std::shared_ptr<const models::StateSnapshot> memories = {};

  // The prompt's ids, with what begins a text.
  std::vector<int64_t> encode(std::string_view prompt) const;
};
// The chat template of this name or file, or where it is empty that of the model's folder
// (chat_template.jinja, chat_template.json, tokenizer_config.json). Throws reynard::Error when
// there is none, or one that uses what is not supported.
generation::ChatTemplate chat_template_of(const TextModel& model, const std::string& name);

// Throws reynard::Error when the model or its tokenizer cannot be read or do not belong together.
TextModel open_text_model(const TextModelArguments& arguments);

}  // namespace reynard::cli
