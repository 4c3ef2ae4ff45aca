#include "reynard/tokenizer/tokenizer_folder.h"

#include "reynard/config/text_file.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/json_fields.h"
#include "reynard/tokenizer/tiktoken.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <system_error>
#include <utility>

namespace reynard::tokenizer {

namespace fs = std::filesystem;

namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

constexpr std::array kPatterns = {std::pair{SplitPattern::kGpt2, std::string_view("gpt2")},
                                  std::pair{SplitPattern::kLlama3, std::string_view("llama3")},
                                  std::pair{SplitPattern::kQwen2, std::string_view("qwen2")}};

fs::path if_there(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) ? path : fs::path();
}

// A token is a string or {"content": string}; null says that there is none.
std::string token_content(const JsonObject& object, std::string_view key) {
  if (!object.has(key)) return {};
  return object.value(key).is_object() ? object.object(key).text("content") : object.text(key);
}

// Everything empty but `config`: no tokenizer.
TokenizerFiles files_in(const fs::path& folder) {
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

bool is_tokenizer(const TokenizerFiles& files) {
  if (!files.main.empty()) return true;
  return !files.config.empty() && read_config(files.config).tokenizer_class == kByteClass;
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
    return {.main = path,
            .merges = {},
            .config = if_there(path.parent_path() / "tokenizer_config.json")};
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

TokenizerConfig read_config(const fs::path& path) {
  TokenizerConfig config;
  if (path.empty()) return config;
  const nlohmann::json contents = parse_json(read_tokenizer_file(path), path.string());
  const JsonObject object(contents, path.string());
  config.tokenizer_class = object.text_or("tokenizer_class", "");
  config.bos = token_content(object, "bos_token");
  config.eos = token_content(object, "eos_token");
  config.no_bos = contents.contains("bos_token") && !object.has("bos_token");
  config.add_bos = object.flag_or("add_bos_token", false);
  config.add_eos = object.flag_or("add_eos_token", false);
  const std::string pattern = object.text_or("split_pattern", "");
  config.pattern = split_pattern_named(pattern);
  if (!pattern.empty() && !config.pattern) {
    object.fail(fmt::format("\"split_pattern\" is {:?}; expected gpt2, llama3 or qwen2", pattern));
  }
  return config;
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
