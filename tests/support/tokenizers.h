#pragma once
// Small tokenizers in every format, made up for tests.

#include "reynard/tokenizer/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::test {

// A byte-level tokenizer.json in GPT-2's manner: 256 bytes, a few merges, <|endoftext|> as the last
// id.
nlohmann::json byte_level_json();
// One in the manner of converted SentencePiece models: "▁", byte fallback, BOS before a text.
nlohmann::json metaspace_json();
// Ranks of the vocabulary of byte_level_json().
std::string tiktoken_ranks();

struct SentencePieceOptions {
  bool byte_fallback = true;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;
  std::string character_map = {};
  std::vector<std::string> user_defined = {};
};
// A SentencePiece BPE model with a few pieces: <unk> 0, <s> 1, </s> 2.
std::string sentencepiece_model(const SentencePieceOptions& options = {});
// The tokenizer of the default one; drops the blank before the first word of what it decodes.
std::unique_ptr<tokenizer::Tokenizer> sentencepiece_tokenizer();

// Texts that tokenizers get wrong: many languages, emoji, spaces, runs; valid UTF-8.
std::vector<std::string> difficult_texts();

}  // namespace reynard::test
