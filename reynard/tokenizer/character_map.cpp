#include "reynard/tokenizer/character_map.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace reynard::tokenizer {

namespace {

// A unit of the double array as darts-clone packs it: the label of the edge that leads here, where
// the children are, and whether a value is among them. A value has the highest bit set.
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & (1U << 9)) >> 6);
}
bool has_value(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t label_of(uint32_t unit) {
  return unit & (1U << 31 | 0xff);
}
uint32_t value_of(uint32_t unit) {
  return unit & ~(1U << 31);
}

}  // namespace

CharacterMap::CharacterMap(std::string_view blob, const std::string& where) {
  if (blob.empty()) return;
  uint32_t trie_bytes = 0;
  if (blob.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, blob.data(), sizeof trie_bytes);
  blob.remove_prefix(std::min(blob.size(), sizeof trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes >= blob.size()) {
    throw Error(fmt::format("{}: the normalization rules are damaged", where));
  }
  units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), blob.data(), trie_bytes);
  replacements_ = blob.substr(trie_bytes);
}

CharacterMap::Match CharacterMap::match(std::string_view text) const {
  Match longest;
  if (units_.empty()) return longest;
  uint32_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (at >= units_.size() || label_of(units_[at]) != byte) break;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_value(unit)) continue;
    if (at >= units_.size()) break;
    const uint32_t begin = value_of(units_[at]);
    if (begin >= replacements_.size()) break;
    const std::size_t end = replacements_.find('\0', begin);
    longest = {i + 1,
               std::string_view(replacements_)
                   .substr(begin, end == std::string::npos ? end : end - begin)};
  }
  return longest;
}

}  // namespace reynard::tokenizer
