#include "reynard/tokenizer/tokenizer.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

namespace reynard::tokenizer {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int64_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= kVocabSize) {
      throw Error(fmt::format(
          "decode: ids[{}] = {}; expected 0 ... {} (byte tokenizer)", i, ids[i], kVocabSize - 1));
    }
    if (ids[i] < kBos) text += static_cast<char>(ids[i]);
  }
  return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  throw Error(fmt::format("tokenizer = \"{}\"; expected byte", name));
}

}  // namespace reynard::tokenizer
