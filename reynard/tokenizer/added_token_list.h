#pragma once
// Added tokens as the files of a tokenizer list them: in tokenizer.json, in tokenizer_config.json
// or in added_tokens.json. Here they are read and get their ids; how they are found in text is the
// business of added_tokens.h.

#include "reynard/tokenizer/added_tokens.h"
#include "reynard/tokenizer/json_fields.h"

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace reynard::tokenizer {

using TokenIds = std::unordered_map<std::string, int32_t>;

struct AddedTokenList {
  std::string where;  // in errors
  // The id -1 is that which another list or the vocabulary gives the token; without one it is none.
  std::vector<AddedToken> tokens;
  // What it says of tokens that lists before it have, too: how they are found, or only which of
  // them are special.
  bool describes = true;
};

// "added_tokens" of tokenizer.json.
AddedTokenList read_added_tokens(const JsonObject& file);
// "added_tokens_decoder" of tokenizer_config.json, which it has: tokens by id. special: those that
// are special whatever it says.
AddedTokenList read_added_tokens_decoder(const JsonObject& config,
                                         const std::unordered_set<std::string>& special);
// added_tokens.json: ids by token. special: those that are special.
AddedTokenList read_added_token_ids(const nlohmann::json& contents,
                                    const std::string& where,
                                    const std::unordered_set<std::string>& special);
// A special token as its name in tokenizer_config.json says it: a string, or an object.
AddedToken read_named_token(const nlohmann::json& token, const std::string& where);

// The tokens of the lists with their ids; their texts are put into token_texts, by id. The ids are
// those that the package `tokenizers` gives: a token of the vocabulary keeps its id, others follow
// one by one. Throws reynard::Error for a list that has others: it would be read wrongly elsewhere.
std::vector<AddedToken> place_added_tokens(std::span<const AddedTokenList> lists,
                                           const TokenIds& vocabulary,
                                           std::vector<std::string>& token_texts);

}  // namespace reynard::tokenizer
