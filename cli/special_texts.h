#pragma once
// What chat templates write for special tokens: Transformers' special_tokens_map, from the files
// that a model's folder has.

#include "reynard/generation/chat_template.h"

#include <filesystem>

namespace reynard::tokenizer {
class Tokenizer;
}

namespace reynard::cli {

// The texts under "..._token" and in extra_special_tokens as special_tokens_map.json says (null:
// there is none), unless tokenizer_config.json lists the added tokens; else as
// tokenizer_config.json says; for BOS and EOS else the names that the tokenizer knows them by,
// unless its class is one that knows none.
generation::SpecialTexts special_texts(const std::filesystem::path& folder,
                                       const tokenizer::Tokenizer& tokenizer);

}  // namespace reynard::cli
