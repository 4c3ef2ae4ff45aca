#pragma once
// The tokens of a byte-pair model and how pieces of text become their ids: smallest tokens first,
// then joined by rank. It knows nothing of normalizing, splitting or special tokens.

#include "reynard/tokenizer/byte_pair.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace reynard::tokenizer {

// What a model file says. Tokens are the bytes that they stand for.
struct VocabularySpec {
  struct Token {
    std::string text;
    int32_t id = 0;
  };
  struct Pair {  // ids
    int32_t left = 0;
    int32_t right = 0;
    int32_t joined = 0;
    int32_t rank = 0;  // lower first; of equals the leftmost in the text
  };
  std::vector<Token> tokens;
  std::vector<Pair> merges;
  bool bytes = false;                // the smallest tokens are bytes, else characters
  bool whole_pieces_first = false;   // a piece that is a token is not taken apart
  int32_t unknown = -1;              // id for characters that are no token; -1: left out
  bool fuse_unknown = false;         // neighbouring unknown characters become one
  std::vector<int32_t> byte_tokens;  // 256 ids that unknown characters fall back to; or empty
};

// A token with the rank of the merges that make it: for files that list ranks or scores of tokens
// instead of merges, any two tokens that make a token together are one.
struct RankedToken {
  std::string_view text;
  int32_t id = 0;
  double rank = 0;
};
std::vector<VocabularySpec::Pair> merges_of_ranked(const std::vector<RankedToken>& tokens);

class Vocabulary {
 public:
  explicit Vocabulary(VocabularySpec spec);

  // What one encoder at a time needs.
  struct Scratch {
    PieceCache cache;
    std::vector<int32_t> ids;
  };

  // Appends the ids of a piece. PieceCache::kPadding bytes behind it must be readable.
  void encode(std::string_view piece, std::vector<int32_t>& ids, Scratch& scratch) const;

  // -1 where the text is no token.
  int32_t find(std::string_view token) const;
  int64_t num_tokens() const { return static_cast<int64_t>(by_text_.size()); }

  // No token holds "▁" behind anything else: words that begin with it do not touch each other.
  bool splits_at_metaspace() const { return splits_at_metaspace_; }

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  void encode_cached(std::string_view piece, std::vector<int32_t>& ids, Scratch& scratch) const;
  void smallest_tokens(std::string_view piece, std::vector<int32_t>& ids) const;
  bool falls_back(std::string_view character, std::vector<int32_t>& ids) const;
  void find_smallest(const VocabularySpec& spec);
  void look_for_boundaries(const VocabularySpec& spec);

  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> by_text_;
  // Of single bytes, or of single ASCII characters.
  std::array<int32_t, 256> by_byte_;
  std::unordered_map<char32_t, int32_t> by_character_;  // others
  MergeTable merges_;
  bool bytes_ = false;
  bool whole_pieces_first_ = false;
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  std::vector<int32_t> byte_tokens_;
  bool splits_at_metaspace_ = false;
  // What begins a new piece, by the first byte of a character: "▁", or a character that no other
  // token holds, as newlines often are, which is a piece by itself.
  enum class Boundary : uint8_t { kNone, kMetaspace, kAlone };
  std::array<Boundary, 256> boundaries_{};
};

inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // "▁", U+2581

}  // namespace reynard::tokenizer
