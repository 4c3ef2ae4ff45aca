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
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace reynard::tokenizer {

using nlohmann::json;

namespace {

// vocab.json and merges.txt as the tokenizer.json that GPT-2's would be.
json gpt2_json(const TokenizerFiles& files, bool add_prefix_space) {
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
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}};
  return {{"pre_tokenizer", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

std::optional<int64_t> id_of(const BytePairParts& parts, const std::string& content) {
  const auto found = std::find(parts.token_texts.begin(), parts.token_texts.end(), content);
  if (content.empty() || found == parts.token_texts.end()) return std::nullopt;
  return found - parts.token_texts.begin();
}

void set_ends(BytePairParts& parts, const TokenizerConfig& config) {
  if (const auto id = id_of(parts, config.bos)) parts.bos = id;
  if (config.no_bos) parts.bos.reset();
  if (const auto id = id_of(parts, config.eos)) parts.eos = id;
}

std::unique_ptr<Tokenizer> open_byte_pair(BytePairParts parts, const TokenizerConfig& config) {
  set_ends(parts, config);
  return std::make_unique<BytePairTokenizer>(std::move(parts));
}

// The template of a tokenizer that has none of its own.
void set_template(BytePairParts& parts, const TokenizerConfig& config, const std::string& where) {
  const auto ends = [&](bool wanted, std::optional<int64_t> id, std::string_view key) {
    if (wanted && !id) {
      throw Error(
          fmt::format("{}: \"add_{}_token\" is true, but no token of the vocabulary {} a text",
                      where,
                      key,
                      key == "bos" ? "begins" : "ends"));
    }
    return wanted ? std::vector{static_cast<int32_t>(*id)} : std::vector<int32_t>();
  };
  parts.template_before = ends(config.add_bos, parts.bos, "bos");
  parts.template_after = ends(config.add_eos, parts.eos, "eos");
}

std::unique_ptr<Tokenizer> open_gpt2(const TokenizerFiles& files, TokenizerConfig config) {
  const std::string& kind = config.tokenizer_class;
  if (!kind.empty() && kind != kJsonEscapedClass &&
      kind.find("GPT2Tokenizer") == std::string::npos) {
    throw Error(
        fmt::format("{}: the tokenizer_class \"{}\" without tokenizer.json is not supported",
                    files.config.string(),
                    kind));
  }
  // What the class takes for the special tokens that are not named.
  const AddedToken end = {
      .content = "<|endoftext|>", .id = -1, .normalized = false, .special = true};
  if (!config.names_ends) config.special_tokens.tokens.push_back(end);
  if (config.bos.empty()) config.bos = end.content;
  if (config.eos.empty()) config.eos = end.content;
  BytePairParts parts =
      read_tokenizer_json(gpt2_json(files, config.add_prefix_space.value_or(false)),
                          files.main.string(),
                          std::array{config.added_tokens, config.special_tokens});
  set_ends(parts, config);
  set_template(parts, config, files.config.string());
  return std::make_unique<BytePairTokenizer>(std::move(parts));
}

// The special tokens of rank files are known, or have no place: listed ones must be among them.
std::unique_ptr<Tokenizer> open_tiktoken(BytePairParts parts, const TokenizerConfig& config) {
  for (const AddedToken& token : config.added_tokens.tokens) {
    const bool known = std::ranges::any_of(parts.added_tokens, [&](const AddedToken& other) {
      return other.content == token.content && other.id == token.id;
    });
    if (known) continue;
    throw Error(fmt::format("{}: {:?} with the id {} beside a rank file is not supported",
                            config.added_tokens.where,
                            token.content,
                            token.id));
  }
  return open_byte_pair(std::move(parts), config);
}

std::unique_ptr<Tokenizer> open_sentencepiece(SentencePieceModel model,
                                              const TokenizerConfig& config,
                                              const std::string& where) {
  if (config.no_bos) model.bos_piece.clear();  // pieces are never empty
  if (config.add_prefix_space) model.add_dummy_prefix = *config.add_prefix_space;
  SentencePieceOptions options{.add_bos = config.add_bos,
                               .add_eos = config.add_eos,
                               .bos = config.bos,
                               .eos = config.eos,
                               .added_tokens = {},
                               .legacy = config.legacy};
  TokenIds ids;
  std::vector<std::string> texts;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    ids.emplace(piece.text, static_cast<int32_t>(texts.size()));
    texts.push_back(piece.text);
  }
  options.added_tokens = place_added_tokens({&config.added_tokens, 1}, ids, texts);
  return std::make_unique<SentencePieceTokenizer>(std::move(model), options, where);
}

std::unique_ptr<Tokenizer> open_files(const TokenizerFiles& files,
                                      const TokenizerConfig& config,
                                      std::optional<SplitPattern> pattern) {
  if (files.main.empty()) return std::make_unique<ByteTokenizer>();
  if (!files.merges.empty()) return open_gpt2(files, config);
  const std::string where = files.main.string();
  const std::string text = read_tokenizer_file(files.main);
  switch (kind_of(text)) {
    case FileKind::kJson:
      return open_byte_pair(
          read_tokenizer_json(parse_json(text, where), where, {&config.added_tokens, 1}), config);
    case FileKind::kTiktoken:
      return open_tiktoken(read_tiktoken(text, where, pattern ? pattern : config.pattern), config);
    case FileKind::kSentencePiece:
      return open_sentencepiece(read_sentencepiece_model(text, where), config, where);
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
  const TokenizerConfig config = read_config(files);
  std::unique_ptr<Tokenizer> tokenizer = open_files(files, config, parsed.pattern);
  const bool escaped = config.tokenizer_class == kJsonEscapedClass;
  if (!parsed.json_escaped && !escaped) return tokenizer;
  const bool has_template = !tokenizer->encode("", {.add_template = true}).empty();
  return std::make_unique<JsonEscapedTokenizer>(std::move(tokenizer),
                                                escaped && config.add_bos && !has_template);
}

}  // namespace reynard::tokenizer
