#include "reynard/tokenizer/tokenizer.h"

#include "reynard/tokenizer/byte_pair_tokenizer.h"

namespace reynard::tokenizer {

std::vector<int32_t> ByteTokenizer::encode_text(std::string_view text,
                                                const EncodeOptions& /*options*/) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode_ids(std::span<const int64_t> ids,
                                      const DecodeOptions& options) const {
  check_ids(ids, kVocabSize, "byte");
  std::string text;
  text.reserve(ids.size());
  for (const int64_t id : ids) {
    if (id < kBos) {
      text += static_cast<char>(id);
    } else if (options.keep_special) {
      text += id == kBos ? "<bos>" : "<eos>";
    }
  }
  return text;
}

}  // namespace reynard::tokenizer
