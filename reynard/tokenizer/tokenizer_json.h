#pragma once
// Reads tokenizer.json, the format of the Hugging Face package `tokenizers`, with a BPE model.
// What is supported: docs/tokenizers.md. Everything else is an error that names it.

#include "reynard/tokenizer/added_token_list.h"
#include "reynard/tokenizer/byte_pair_tokenizer.h"
#include "reynard/tokenizer/json_fields.h"

#include <span>
#include <string>
#include <vector>

namespace reynard::tokenizer {

// contents: of the file; where: its name in errors; more: added tokens that other files list.
// Throws reynard::Error.
BytePairParts read_tokenizer_json(const nlohmann::json& contents,
                                  const std::string& where,
                                  std::span<const AddedTokenList> more = {});

// The parts of the file. Each takes the object that describes it.
Normalizer read_normalizer(const JsonObject& object);
struct ReadPreTokenizer {
  PreTokenizer splitter;
  bool byte_level = false;  // the model sees bytes, written in the byte alphabet
};
ReadPreTokenizer read_pre_tokenizer(const JsonObject& object);
Decoder read_decoder(const JsonObject& object);

// The model: the vocabulary, the ids of its tokens and the text of each id.
struct ReadModel {
  VocabularySpec vocabulary;
  TokenIds ids;
  std::vector<std::string> token_texts;
};
ReadModel read_model(const JsonObject& object, bool byte_level);

// Ids a file may have, so that a hostile one cannot ask for all memory.
inline constexpr int64_t kMaxVocabulary = 1 << 22;

}  // namespace reynard::tokenizer
