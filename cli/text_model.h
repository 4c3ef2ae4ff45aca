#pragma once
// A model with its tokenizer: what generate, chat and serve open.

#include "reynard/models/decoder.h"
#include "reynard/tokenizer/tokenizer.h"

#include <cstdint>
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
  std::string dtype = "f32";
  std::optional<double> log_tolerance;  // empty: the model's
};
void add_options(CLI::App& command, TextModelArguments& arguments);

struct TextModel {
  models::Decoder decoder;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::string name;            // of its folder
  std::vector<int64_t> stop;   // tokens that end a text
  std::optional<int64_t> bos;  // begins every prompt

  // The prompt's ids with BOS.
  std::vector<int64_t> encode(std::string_view prompt) const;
};
// Throws reynard::Error when the model or its tokenizer cannot be read or do not belong together.
TextModel open_text_model(const TextModelArguments& arguments);

}  // namespace reynard::cli
