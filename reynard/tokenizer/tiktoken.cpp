#include "reynard/tokenizer/tiktoken.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/byte_alphabet.h"
#include "reynard/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

namespace reynard::tokenizer {

namespace {

constexpr int kNotBase64 = 64;

constexpr int value_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : kNotBase64;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.back() == '='; ++padding) text.remove_suffix(1);
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const int value = value_of(c);
    if (value == kNotBase64) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  return bytes;
}

struct RankLine {
  std::string token;
  int32_t rank = 0;
};

std::optional<RankLine> read_line(std::string_view line) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos) return std::nullopt;
  auto token = from_base64(line.substr(0, blank));
  const std::string_view digits = line.substr(blank + 1);
  int32_t rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (!token || error != std::errc{} || end != digits.data() + digits.size() || rank < 0 ||
      rank >= kMaxVocabulary) {
    return std::nullopt;
  }
  return RankLine{*std::move(token), rank};
}

std::vector<VocabularySpec::Token> read_lines(std::string_view text, const std::string& where) {
  std::vector<VocabularySpec::Token> tokens;
  std::vector<bool> taken;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    if (content.empty()) continue;
    auto read = read_line(content);
    if (!read) {
      throw Error(fmt::format("{}: line {} is not \"BASE64 RANK\"", where, line));
    }
    const auto rank = static_cast<std::size_t>(read->rank);
    if (rank >= taken.size()) taken.resize(rank + 1);
    if (taken[rank]) throw Error(fmt::format("{}: line {}: rank {} again", where, line, rank));
    taken[rank] = true;
    tokens.push_back({std::move(read->token), read->rank});
  }
  return tokens;
}

struct SpecialToken {
  std::string_view content;
  int32_t id;
};

struct KnownFile {
  std::size_t num_ranks;
  std::string_view name;
  SplitPattern pattern;
  std::vector<SpecialToken> special;
  std::string_view bos;
  std::string_view eos;
};

// Special tokens as the publishers of the vocabularies define them.
const std::vector<KnownFile>& known_files() {
  static const std::vector<KnownFile> files = {
      {50256,
       "GPT-2",
       SplitPattern::kGpt2,
       {{"<|endoftext|>", 50256}},
       "<|endoftext|>",
       "<|endoftext|>"},
      {100256,
       "cl100k",
       SplitPattern::kLlama3,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}},
       "",
       "<|endoftext|>"},
      {128000,
       "Llama-3",
       SplitPattern::kLlama3,
       {{"<|begin_of_text|>", 128000},
        {"<|end_of_text|>", 128001},
        {"<|start_header_id|>", 128006},
        {"<|end_header_id|>", 128007},
        {"<|eot_id|>", 128009}},
       "<|begin_of_text|>",
       "<|end_of_text|>"},
      {151643,
       "Qwen",
       SplitPattern::kQwen2,
       {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
       "",
       "<|endoftext|>"}};
  return files;
}

KnownFile choose_file(std::size_t num_ranks,
                      int32_t next_id,
                      const std::string& where,
                      std::optional<SplitPattern> pattern) {
  if (pattern) {
    return {num_ranks, "tiktoken", *pattern, {{"<|endoftext|>", next_id}}, "", "<|endoftext|>"};
  }
  std::string known;
  for (const KnownFile& file : known_files()) {
    if (file.num_ranks == num_ranks) return file;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", file.num_ranks, file.name);
  }
  throw Error(
      fmt::format("{}: {} ranks are no vocabulary whose splitting pattern is known: {}; write "
                  "gpt2:, llama3: or qwen2: before the name of the file",
                  where,
                  num_ranks,
                  known));
}

}  // namespace

BytePairParts read_tiktoken(std::string_view text,
                            const std::string& where,
                            std::optional<SplitPattern> pattern) {
  BytePairParts parts;
  VocabularySpec& vocabulary = parts.vocabulary;
  vocabulary.tokens = read_lines(text, where);
  vocabulary.bytes = true;
  vocabulary.whole_pieces_first = true;
  std::array<bool, 256> have{};
  std::vector<RankedToken> ranked;
  for (const auto& [token, id] : vocabulary.tokens) {
    ranked.push_back({token, id, static_cast<double>(id)});
    if (token.size() == 1) have[static_cast<unsigned char>(token[0])] = true;
    const auto index = static_cast<std::size_t>(id);
    if (index >= parts.token_texts.size()) parts.token_texts.resize(index + 1);
    parts.token_texts[index] = characters_of_bytes(token);
  }
  const auto missing = std::find(have.begin(), have.end(), false);
  if (missing != have.end()) {
    throw Error(fmt::format(
        "{}: has no token for the byte {}; expected all 256", where, missing - have.begin()));
  }
  vocabulary.merges = merges_of_ranked(ranked);
  const KnownFile file = choose_file(
      vocabulary.tokens.size(), static_cast<int32_t>(parts.token_texts.size()), where, pattern);
  for (const auto& [content, id] : file.special) {
    parts.added_tokens.push_back(
        {.content = std::string(content), .id = id, .normalized = false, .special = true});
    const auto index = static_cast<std::size_t>(id);
    if (index >= parts.token_texts.size()) parts.token_texts.resize(index + 1);
    parts.token_texts[index] = content;
    if (content == file.bos) parts.bos = id;
    if (content == file.eos) parts.eos = id;
  }
  parts.pre_tokenizer.add(FamilySplit{file.pattern});
  parts.decoder.emplace().add(DecodeByteLevel{});
  parts.name = fmt::format("{} byte-level BPE", file.name);
  return parts;
}

bool looks_like_tiktoken(std::string_view text) {
  return read_line(text.substr(0, std::min(text.find_first_of("\r\n"), text.size()))).has_value();
}

}  // namespace reynard::tokenizer
