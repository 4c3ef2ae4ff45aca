#include "reynard/tokenizer/tokenizer_folder.h"

#include "reynard/config/text_file.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/json_fields.h"
#include "reynard/tokenizer/tiktoken.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace reynard::tokenizer {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::array kSpecialTokens = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
constexpr std::array kSpecialLists = {"additional_special_tokens", "extra_special_tokens"};

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

constexpr std::array kPatterns = {std::pair{SplitPattern::kGpt2, std::string_view("gpt2")},
                                  std::pair{SplitPattern::kLlama3, std::string_view("llama3")},
                                  std::pair{SplitPattern::kQwen2, std::string_view("qwen2")}};

fs::path if_there(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) ? path : fs::path();
}

// Everything empty but `config`: no tokenizer.
TokenizerFiles main_files_in(const fs::path& folder) {
  TokenizerFiles files;
  files.config = if_there(folder / "tokenizer_config.json");
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer.tiktoken"}) {
    files.main = if_there(folder / name);
    if (!files.main.empty()) return files;
  }
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".tiktoken" && files.main < entry.path()) {
      files.main = entry.path();
    }
  }
  if (!files.main.empty()) return files;
  files.main = if_there(folder / "vocab.json");
  files.merges = if_there(folder / "merges.txt");
  if (files.main.empty() || files.merges.empty()) files.main = files.merges = fs::path();
  return files;
}

TokenizerFiles with_token_lists(TokenizerFiles files, const fs::path& folder) {
  if (files.main.empty()) return files;
  files.added_tokens = if_there(folder / "added_tokens.json");
  files.special_tokens = if_there(folder / "special_tokens_map.json");
  return files;
}

TokenizerFiles files_in(const fs::path& folder) {
  return with_token_lists(main_files_in(folder), folder);
}

json read_json(const fs::path& path) {
  if (path.empty()) return json::object();
  return parse_json(read_tokenizer_file(path), path.string());
}

// map: of special_tokens_map.json, whose tokens count before those of the config.
void read_special_tokens(const JsonObject& config, const JsonObject& map, TokenizerConfig& read) {
  read.special_tokens = {.where = config.where(), .tokens = {}, .describes = false};
  std::vector<AddedToken>& tokens = read.special_tokens.tokens;
  const auto token_of = [&](const char* key) -> std::optional<AddedToken> {
    const JsonObject& object = map.has(key) ? map : config;
    if (!object.has(key)) return std::nullopt;
    return read_named_token(object.value(key), fmt::format("{}: {}", object.where(), key));
  };
  const auto bos = token_of("bos_token"), eos = token_of("eos_token");
  if (bos) read.bos = bos->content;
  if (eos) read.eos = eos->content;
  read.names_ends = bos && eos && token_of("unk_token");
  for (const char* key : kSpecialTokens) {
    if (auto token = token_of(key)) tokens.push_back(*std::move(token));
  }
  for (const char* key : kSpecialLists) {
    const JsonObject& object = map.has(key) ? map : config;
    if (!object.has(key)) continue;
    const std::string where = fmt::format("{}: {}", object.where(), key);
    if (!object.value(key).is_structured()) throw Error(where + " is no list of tokens");
    for (const json& token : object.value(key)) tokens.push_back(read_named_token(token, where));
  }
}

void read_token_lists(const TokenizerFiles& files, const json& contents, TokenizerConfig& read) {
  const JsonObject config(contents, files.config.string());
  const bool is_decoder = lists_added_tokens(contents);
  const json map = is_decoder ? json::object() : read_json(files.special_tokens);
  read_special_tokens(config, JsonObject(map, files.special_tokens.string()), read);
  std::unordered_set<std::string> special;
  for (const AddedToken& token : read.special_tokens.tokens) special.insert(token.content);
  if (is_decoder) {
    read.added_tokens = read_added_tokens_decoder(config, special);
  } else if (!files.added_tokens.empty()) {
    read.added_tokens =
        read_added_token_ids(read_json(files.added_tokens), files.added_tokens.string(), special);
  }
}

bool is_tokenizer(const TokenizerFiles& files) {
  if (!files.main.empty()) return true;
  return !files.config.empty() && read_config(files).tokenizer_class == kByteClass;
}

}  // namespace

std::string_view name_of(SplitPattern pattern) {
  for (const auto& [known, name] : kPatterns) {
    if (known == pattern) return name;
  }
  return {};
}

std::optional<SplitPattern> split_pattern_named(std::string_view name) {
  for (const auto& [pattern, known] : kPatterns) {
    if (known == name) return pattern;
  }
  return std::nullopt;
}

TokenizerName parse_name(std::string_view name) {
  TokenizerName parsed;
  const auto take = [&](std::string_view word) {
    const bool there = name.starts_with(word) && name.substr(word.size()).starts_with(":");
    if (there) name.remove_prefix(word.size() + 1);
    return there;
  };
  parsed.json_escaped = take("json");
  for (const auto& [pattern, word] : kPatterns) {
    if (!parsed.pattern && take(word)) parsed.pattern = pattern;
  }
  parsed.path = name;
  return parsed;
}

TokenizerFiles find_files(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error(fmt::format("tokenizer = \"{}\"; expected byte, or a file or folder that exists",
                            path.string()));
  }
  if (!fs::is_directory(path, error)) {
    const fs::path folder = path.parent_path();
    TokenizerFiles files;
    files.main = path;
    files.config = if_there(folder / "tokenizer_config.json");
    return with_token_lists(std::move(files), folder);
  }
  for (const fs::path& folder : {path, path / "model"}) {  // the latter of a run
    TokenizerFiles files = files_in(folder);
    if (is_tokenizer(files)) return files;
  }
  throw Error(
      fmt::format("{}: holds no tokenizer: tokenizer.json, tokenizer.model, a .tiktoken file, or "
                  "vocab.json with merges.txt",
                  path.string()));
}

bool holds_tokenizer(const fs::path& folder) {
  return is_tokenizer(files_in(folder));
}

TokenizerConfig read_config(const TokenizerFiles& files) {
  TokenizerConfig config;
  const json contents = read_json(files.config);
  const JsonObject object(contents, files.config.string());
  config.tokenizer_class = object.text_or("tokenizer_class", "");
  config.add_bos = object.flag_or("add_bos_token", false);
  config.add_eos = object.flag_or("add_eos_token", false);
  if (object.has("add_prefix_space")) {
    config.add_prefix_space = object.flag_or("add_prefix_space", false);
  }
  config.legacy = object.flag_or("legacy", true);
  read_token_lists(files, contents, config);
  config.no_bos = config.bos.empty() && contents.contains("bos_token") && !object.has("bos_token");
  const std::string pattern = object.text_or("split_pattern", "");
  config.pattern = split_pattern_named(pattern);
  if (!pattern.empty() && !config.pattern) {
    object.fail(fmt::format("\"split_pattern\" is {:?}; expected gpt2, llama3 or qwen2", pattern));
  }
  return config;
}

bool lists_added_tokens(const json& config) {
  const auto list = config.find("added_tokens_decoder");
  return list != config.end() && !list->is_null();
}

std::string read_tokenizer_file(const fs::path& path) {
  return config::read_text_file(path, kMaxFileBytes);
}

FileKind kind_of(std::string_view contents) {
  const std::size_t first = contents.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return FileKind::kUnknown;
  if (contents[first] == '{') return FileKind::kJson;
  if (looks_like_tiktoken(contents)) return FileKind::kTiktoken;
  // The key of a model's first piece.
  return contents[0] == '\n' ? FileKind::kSentencePiece : FileKind::kUnknown;
}

}  // namespace reynard::tokenizer
