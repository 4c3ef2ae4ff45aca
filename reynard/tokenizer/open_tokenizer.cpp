// make_tokenizer: which reader a name, a file or a folder needs.

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/byte_pair_tokenizer.h"
#include "reynard/tokenizer/json_escaped.h"
#include "reynard/tokenizer/json_fields.h"
#include "reynard/tokenizer/sentencepiece.h"
#include "reynard/tokenizer/tiktoken.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/tokenizer_folder.h"
#include "reynard/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace reynard::tokenizer {

using nlohmann::json;

namespace {

// vocab.json and merges.txt as the tokenizer.json that GPT-2's would be.
json gpt2_json(const TokenizerFiles& files) {
  const json vocab = parse_json(read_tokenizer_file(files.main), files.main.string());
  json merges = json::array();
  const std::string text = read_tokenizer_file(files.merges);
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty() && line.substr(0, 8) != "#version") merges.push_back(std::string(line));
  }
  json added = json::array();
  if (const auto end = vocab.find("<|endoftext|>"); vocab.is_object() && end != vocab.end()) {
    added.push_back(
        {{"id", *end}, {"content", "<|endoftext|>"}, {"normalized", false}, {"special", true}});
  }
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return {{"added_tokens", added},
          {"pre_tokenizer", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

std::optional<int64_t> id_of(const BytePairParts& parts, const std::string& content) {
  const auto found = std::find(parts.token_texts.begin(), parts.token_texts.end(), content);
  if (content.empty() || found == parts.token_texts.end()) return std::nullopt;
  return found - parts.token_texts.begin();
}

std::unique_ptr<Tokenizer> open_byte_pair(BytePairParts parts, const TokenizerConfig& config) {
  if (const auto id = id_of(parts, config.bos)) parts.bos = id;
  if (config.no_bos) parts.bos.reset();
  if (const auto id = id_of(parts, config.eos)) parts.eos = id;
  return std::make_unique<BytePairTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> open_files(const TokenizerFiles& files,
                                      const TokenizerConfig& config,
                                      std::optional<SplitPattern> pattern) {
  if (files.main.empty()) return std::make_unique<ByteTokenizer>();
  if (!files.merges.empty()) {
    const std::string& kind = config.tokenizer_class;
    if (!kind.empty() && kind != kJsonEscapedClass &&
        kind.find("GPT2Tokenizer") == std::string::npos) {
      throw Error(
          fmt::format("{}: the tokenizer_class \"{}\" without tokenizer.json is not supported",
                      files.config.string(),
                      kind));
    }
    return open_byte_pair(read_tokenizer_json(gpt2_json(files), files.main.string()), config);
  }
  const std::string where = files.main.string();
  const std::string text = read_tokenizer_file(files.main);
  switch (kind_of(text)) {
    case FileKind::kJson:
      return open_byte_pair(read_tokenizer_json(parse_json(text, where), where), config);
    case FileKind::kTiktoken:
      return open_byte_pair(read_tiktoken(text, where, pattern ? pattern : config.pattern), config);
    case FileKind::kSentencePiece:
      return std::make_unique<SentencePieceTokenizer>(
          read_sentencepiece_model(text, where),
          SentencePieceOptions{.add_bos = config.add_bos, .add_eos = config.add_eos},
          where);
    case FileKind::kUnknown:
      break;
  }
  throw Error(
      fmt::format("{}: is no tokenizer: neither tokenizer.json, nor tiktoken ranks, nor a "
                  "SentencePiece model",
                  where));
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  const TokenizerName parsed = parse_name(name);
  const std::string_view prefix = name.substr(0, name.size() - parsed.path.native().size());
  if (std::error_code error; !prefix.empty() && !std::filesystem::exists(parsed.path, error)) {
    throw Error(fmt::format(
        "tokenizer = \"{}\"; expected a file or folder that exists behind {}", name, prefix));
  }
  const TokenizerFiles files = find_files(parsed.path);
  const TokenizerConfig config = read_config(files.config);
  std::unique_ptr<Tokenizer> tokenizer = open_files(files, config, parsed.pattern);
  const bool escaped = config.tokenizer_class == kJsonEscapedClass;
  if (!parsed.json_escaped && !escaped) return tokenizer;
  return std::make_unique<JsonEscapedTokenizer>(std::move(tokenizer), escaped && config.add_bos);
}

}  // namespace reynard::tokenizer
