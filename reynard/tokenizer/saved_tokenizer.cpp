#include "reynard/tokenizer/saved_tokenizer.h"

#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/json_fields.h"
#include "reynard/tokenizer/tokenizer_folder.h"

#include <fmt/format.h>

#include <cstdint>

namespace reynard::tokenizer {

namespace {

using nlohmann::json;

SavedFile config_file(const json& config) {
  return {"tokenizer_config.json", config::json_text(config, 2) + "\n"};
}

std::string main_name(std::string_view contents, const std::string& where) {
  switch (kind_of(contents)) {
    case FileKind::kJson:
      return "tokenizer.json";
    case FileKind::kTiktoken:
      return "tokenizer.tiktoken";
    case FileKind::kSentencePiece:
      return "tokenizer.model";
    case FileKind::kUnknown:
      break;
  }
  throw Error(where + ": is no tokenizer");
}

}  // namespace

std::vector<SavedFile> saved_files(std::string_view name) {
  if (name == "byte") return {config_file({{"tokenizer_class", kByteClass}})};
  const TokenizerName parsed = parse_name(name);
  const TokenizerFiles files = find_files(parsed.path);
  std::vector<SavedFile> saved;
  if (!files.merges.empty()) {
    saved.push_back({"vocab.json", read_tokenizer_file(files.main)});
    saved.push_back({"merges.txt", read_tokenizer_file(files.merges)});
  } else if (!files.main.empty()) {
    std::string contents = read_tokenizer_file(files.main);
    std::string main = main_name(contents, files.main.string());
    saved.push_back({std::move(main), std::move(contents)});
  }
  json config = json::object();
  if (!files.config.empty()) {
    config = parse_json(read_tokenizer_file(files.config), files.config.string());
  }
  if (!lists_added_tokens(config)) {
    for (const auto& list : {files.added_tokens, files.special_tokens}) {
      if (!list.empty()) saved.push_back({list.filename().string(), read_tokenizer_file(list)});
    }
  }
  // What the name said is written down: the copy goes without it.
  if (parsed.json_escaped) config["tokenizer_class"] = kJsonEscapedClass;
  if (parsed.pattern) config["split_pattern"] = name_of(*parsed.pattern);
  if (!config.empty()) saved.push_back(config_file(config));
  return saved;
}

std::string fingerprint(const std::vector<SavedFile>& files) {
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    hash = (hash ^ text.size()) * 0x100000001b3U;
  };
  for (const SavedFile& file : files) {
    add(file.name);
    add(file.contents);
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace reynard::tokenizer
