#include "tests/support/tokenizers.h"

#include "reynard/tokenizer/byte_alphabet.h"
#include "tests/support/files.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>

namespace reynard::test {

namespace {

using nlohmann::json;

const std::vector<std::pair<std::string, std::string>>& byte_merges() {
  static const std::vector<std::pair<std::string, std::string>> merges = {{"h", "e"},
                                                                          {"t", "he"},
                                                                          {" ", "the"},
                                                                          {"i", "n"},
                                                                          {"l", "l"},
                                                                          {"he", "ll"},
                                                                          {"hell", "o"},
                                                                          {"a", "a"},
                                                                          {"aa", "aa"},
                                                                          {"1", "2"},
                                                                          {" ", " "},
                                                                          {"\xc3", "\xa9"},
                                                                          {"'", "s"}};
  return merges;
}

std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : byte_merges()) tokens.push_back(left + right);
  return tokens;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string bytes_field(uint64_t number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

std::string int_field(uint64_t number, uint64_t value) {
  return varint(number << 3) + varint(value);
}

std::string piece(std::string_view text, float score, uint64_t type) {
  std::string message = bytes_field(1, text) + varint(2 << 3 | 5);
  const auto bits = std::bit_cast<uint32_t>(score);
  for (int i = 0; i < 4; ++i) message += static_cast<char>(bits >> 8 * i);
  return bytes_field(1, message + int_field(3, type));
}

}  // namespace

json byte_level_json() {
  json vocab = json::object();
  json merges = json::array();
  for (const std::string& token : byte_tokens()) {
    vocab[tokenizer::characters_of_bytes(token)] = vocab.size();
  }
  for (const auto& [left, right] : byte_merges()) {
    merges.push_back({tokenizer::characters_of_bytes(left), tokenizer::characters_of_bytes(right)});
  }
  const json end = {{"id", vocab.size()}, {"content", "<|endoftext|>"}, {"special", true}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return {{"added_tokens", {end}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

json metaspace_json() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = vocab.size();
  for (const char* token : {"▁", "t", "h", "e", "l", "o", "é", "▁t", "he", "▁the", "ll", "▁▁"}) {
    vocab[token] = vocab.size();
  }
  const json merges = {"▁ t", "h e", "▁t he", "l l", "▁ ▁"};
  const json start = {{"id", 1}, {"content", "<s>"}, {"special", true}, {"normalized", false}};
  const json spaces = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const json back = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  return {
      {"added_tokens", {start}},
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, spaces}}}},
      {"pre_tokenizer", nullptr},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {back,
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", merges}}}};
}

std::string tiktoken_ranks() {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  int64_t rank = 0;
  for (const std::string& token : byte_tokens()) {
    std::string encoded;
    for (std::size_t i = 0; i < token.size(); i += 3) {
      uint32_t bits = 0;
      const std::size_t n = std::min<std::size_t>(3, token.size() - i);
      for (std::size_t j = 0; j < 3; ++j) {
        bits = bits << 8 | (j < n ? static_cast<unsigned char>(token[i + j]) : 0);
      }
      for (std::size_t j = 0; j < 4; ++j) {
        encoded += j <= n ? digits[bits >> (18 - 6 * j) & 63] : '=';
      }
    }
    text += fmt::format("{} {}\n", encoded, rank++);
  }
  return text;
}

std::string sentencepiece_model(const SentencePieceOptions& options) {
  constexpr uint64_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;
  std::string model = piece("<unk>", 0, kUnknown) + piece("<s>", 0, kControl);
  model += piece("</s>", 0, kControl);
  for (const std::string& text : options.user_defined) model += piece(text, 0, kUserDefined);
  for (int byte = 0; byte < 256 && options.byte_fallback; ++byte) {
    model += piece(fmt::format("<0x{:02X}>", byte), 0, kByte);
  }
  float score = 0;
  for (const char* text : {"▁t", "he", "▁the", "ll", "▁he", "▁hello", "hello", "lo", "llo"}) {
    model += piece(text, score--, kNormal);
  }
  for (const char* text : {"▁", "t", "h", "e", "l", "o", "é"}) {
    model += piece(text, score--, kNormal);
  }
  model += bytes_field(2, int_field(3, 2) + int_field(35, options.byte_fallback));
  model +=
      bytes_field(3,
                  bytes_field(2, options.character_map) + int_field(3, options.add_dummy_prefix) +
                      int_field(4, options.remove_extra_whitespaces));
  return model;
}

std::unique_ptr<tokenizer::Tokenizer> sentencepiece_tokenizer() {
  const TempDir folder;
  write_file(folder / "tokenizer.model", sentencepiece_model());
  return tokenizer::make_tokenizer((folder / "tokenizer.model").string());
}

std::vector<std::string> difficult_texts() {
  return {"",
          "hello",
          " the hell",
          "the  hello   the",
          "\n\n the\r\n\thello \n",
          "It's WE'LL can't 'S x'ſ",
          "naïve é e\u0301 \u00a0\u2003 ",
          "Привет мир 你好世界 مرحبا 안녕하세요 ǅ½²Ⅷ٣",
          "12345 1,234.5 0x1F",
          "👩‍👩‍👧 🏳️‍🌈!",
          "a<|endoftext|>b <s>",
          std::string(300, 'a'),
          std::string(100, ' ') + "the",
          std::string(5, '\n') + "x" + std::string(3, ' '),
          "▁the▁▁hello",
          std::string("\0\x01\x7f", 3),
          "...!?--'' \"the\""};
}

}  // namespace reynard::test
