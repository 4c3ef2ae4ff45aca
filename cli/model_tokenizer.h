#pragma once
// The tokenizer that belongs to a model: the one in its folder, or one that the user names.

#include "reynard/tokenizer/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace reynard::cli {

// What make_tokenizer() takes for a model. model: the folder of its config.json; given: what the
// user named, empty: the folder's own files, and without any the byte tokenizer where the model's
// vocabulary is as small as that. Empty where there is none. Throws reynard::Error for a tokenizer
// that was named where the folder holds one of other ids.
std::string tokenizer_of_model(const std::filesystem::path& model,
                               int64_t vocab_size,
                               const std::string& given = "");

// Throws reynard::Error unless every id that both have stands for the same text. a_name, b_name:
// what they belong to, for the message; remedy: its end.
void check_same_tokenizer(const tokenizer::Tokenizer& a,
                          const std::string& a_name,
                          const tokenizer::Tokenizer& b,
                          const std::string& b_name,
                          std::string_view remedy);

}  // namespace reynard::cli
