#pragma once
// The tokens that end a text, as a model's folder names them.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace reynard::cli {

// The ids under "eos_token_id" of a JSON file, which need not be there: one, a list, or none.
// Throws reynard::Error for what is no token of the vocabulary.
std::vector<int64_t> end_tokens(const std::filesystem::path& file, int64_t vocab_size);

// Adds those that are not there yet.
void add_unique(std::vector<int64_t>& tokens, const std::vector<int64_t>& more);

}  // namespace reynard::cli
