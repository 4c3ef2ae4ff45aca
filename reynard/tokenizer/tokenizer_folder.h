#pragma once
// Where the files of a tokenizer are and which of them a name means: the parts of make_tokenizer()
// that reading a tokenizer and keeping a copy of it share.

#include "reynard/tokenizer/added_token_list.h"
#include "reynard/tokenizer/split_pattern.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace reynard::tokenizer {

// What a name says: "json:llama3:PATH".
struct TokenizerName {
  bool json_escaped = false;
  std::optional<SplitPattern> pattern;
  std::filesystem::path path;
};
TokenizerName parse_name(std::string_view name);

// The files of a tokenizer; those that it does not have are empty. All are empty for a folder that
// holds nothing but tokenizer_config.json.
struct TokenizerFiles {
  std::filesystem::path main;          // tokenizer.json, rank file, model; or vocab.json
  std::filesystem::path merges;        // merges.txt beside vocab.json
  std::filesystem::path config;        // tokenizer_config.json
  std::filesystem::path added_tokens;  // added_tokens.json
  // special_tokens_map.json; looked for only beside vocab.json and added_tokens.json, which do not
  // say which tokens are special.
  std::filesystem::path special_tokens;
};
// Of a run's folder those of its model. Throws reynard::Error for a path where nothing is and a
// folder that holds no tokenizer.
TokenizerFiles find_files(const std::filesystem::path& path);

// Whether find_files() finds a tokenizer in this very folder.
bool holds_tokenizer(const std::filesystem::path& folder);

// What tokenizer_config.json and the lists of tokens add to the other files.
struct TokenizerConfig {
  std::string tokenizer_class;
  std::string bos;  // contents of tokens; empty: not said
  std::string eos;
  bool no_bos = false;  // it says that there is none
  bool add_bos = false;
  bool add_eos = false;
  std::optional<bool> add_prefix_space;
  bool legacy = true;  // SentencePiece: text behind an added token is marked as its beginning is
  AddedTokenList added_tokens;
  // BOS, EOS, the unknown token, padding and others, each by its name; without ids.
  AddedTokenList special_tokens;
  bool names_ends = false;              // BOS, EOS and the unknown token are among them
  std::optional<SplitPattern> pattern;  // of a tiktoken file; only reynard writes it
};
TokenizerConfig read_config(const TokenizerFiles& files);

// Whether a tokenizer_config.json lists the added tokens: it then stands for added_tokens.json and
// special_tokens_map.json, as in Transformers.
bool lists_added_tokens(const nlohmann::json& config);

// "gpt2", "llama3", "qwen2"
std::string_view name_of(SplitPattern pattern);
// The reverse; nothing for another name.
std::optional<SplitPattern> split_pattern_named(std::string_view name);

// The contents of a file. Throws reynard::Error for one that cannot be read or is too large.
std::string read_tokenizer_file(const std::filesystem::path& path);

enum class FileKind { kJson, kTiktoken, kSentencePiece, kUnknown };
FileKind kind_of(std::string_view contents);

// Classes in tokenizer_config.json that mean more than what the other files say.
inline constexpr std::string_view kByteClass = "ByteTokenizer";  // it needs no other file
inline constexpr std::string_view kJsonEscapedClass = "JSONGPT2Tokenizer";  // as the FoX code's

}  // namespace reynard::tokenizer
