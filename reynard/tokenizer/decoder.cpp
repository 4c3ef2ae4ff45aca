#include "reynard/tokenizer/decoder.h"

#include "reynard/tokenizer/byte_alphabet.h"
#include "reynard/tokenizer/normalizer.h"
#include "reynard/tokenizer/unicode.h"
#include "reynard/tokenizer/utf8.h"

#include <cstddef>
#include <optional>

namespace reynard::tokenizer {

namespace {

using Tokens = std::vector<std::string>;

std::string concatenated(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

struct Step {
  const Tokens& tokens;
  bool raw_bytes;

  Tokens operator()(const DecodeByteLevel&) const {
    std::string text;
    for (const std::string& token : tokens) text += bytes_of_characters(token).value_or(token);
    return {text};
  }

  Tokens operator()(const DecodeByteFallback&) const {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (raw_bytes || is_utf8(bytes)) {
        if (!bytes.empty()) out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xef\xbf\xbd");
      }
      bytes.clear();
    };
    for (const std::string& token : tokens) {
      const int byte = byte_of_token(token);
      if (byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(token);
      }
    }
    flush();
    return out;
  }

  Tokens operator()(const DecodeFuse&) const { return {concatenated(tokens)}; }

  Tokens operator()(const DecodeReplaceText& replace) const {
    Tokens out;
    out.reserve(tokens.size());
    for (const std::string& token : tokens) {
      out.push_back(replace_all(token, replace.from, replace.to));
    }
    return out;
  }

  Tokens operator()(const DecodeReplace& replace) const {
    Tokens out;
    for (const std::string& token : tokens) {
      out.push_back(replace_all(token, replace.from, replace.to));
    }
    return out;
  }

  Tokens operator()(const DecodeStrip& strip) const {
    Tokens out;
    const std::string_view content = strip.content;
    for (std::string_view token : tokens) {
      for (int64_t i = 0; i < strip.start && token.substr(0, content.size()) == content; ++i) {
        token.remove_prefix(content.size());
      }
      for (int64_t i = 0; i < strip.stop && token.size() >= content.size() &&
                          token.substr(token.size() - content.size()) == content;
           ++i) {
        token.remove_suffix(content.size());
      }
      out.emplace_back(token);
    }
    return out;
  }

  Tokens operator()(const DecodeMetaspace& metaspace) const {
    Tokens out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool drop = i == 0 && metaspace.drop_first;
      out.push_back(replace_all(tokens[i], metaspace.replacement, drop ? "" : " "));
    }
    return out;
  }
};

}  // namespace

std::string Decoder::decode(std::vector<std::string> tokens, bool raw_bytes) const {
  for (const DecoderStep& step : steps_) tokens = std::visit(Step{tokens, raw_bytes}, step);
  return concatenated(tokens);
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const std::optional<char32_t> byte = leading_hex(token.substr(3), 2);
  return byte ? static_cast<int>(*byte) : -1;
}

}  // namespace reynard::tokenizer
