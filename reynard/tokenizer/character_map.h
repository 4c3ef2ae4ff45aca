#pragma once
// The rules by which a SentencePiece model replaces characters ("nmt_nfkc" and the like): a double
// array trie over the texts to replace and, behind it, what replaces them. Every access is checked,
// so that a damaged file gives wrong text at worst.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

class CharacterMap {
 public:
  CharacterMap() = default;
  // blob: the bytes in the model file; where: for errors. Throws reynard::Error where sizes do not
  // fit together.
  CharacterMap(std::string_view blob, const std::string& where);

  bool empty() const { return units_.empty(); }

  struct Match {
    std::size_t length = 0;  // bytes of the text that are replaced; 0: none
    std::string_view replacement;
  };
  // The longest rule for what the text begins with.
  Match match(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

}  // namespace reynard::tokenizer
