#pragma once
// A tokenizer as tokenizer.json describes one: added tokens are found, the rest is normalized,
// split and taken to a byte-pair vocabulary; a template puts tokens around it; a decoder turns
// tokens into text.

#include "reynard/tokenizer/added_tokens.h"
#include "reynard/tokenizer/decoder.h"
#include "reynard/tokenizer/normalizer.h"
#include "reynard/tokenizer/pre_tokenizer.h"
#include "reynard/tokenizer/scratch_pool.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/vocabulary.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

// The parts, as a file names them.
struct BytePairParts {
  std::string name;
  VocabularySpec vocabulary;
  std::vector<std::string> token_texts;  // by id, as decoding sees them; empty: no such token
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<int32_t> template_before;  // tokens that the template puts around a text
  std::vector<int32_t> template_after;
  std::optional<Decoder> decoder;  // none: decoding puts a blank between tokens
  std::optional<int64_t> bos;
  std::optional<int64_t> eos;
};

class BytePairTokenizer final : public Tokenizer {
 public:
  explicit BytePairTokenizer(BytePairParts parts);
  ~BytePairTokenizer() override;

  std::string name() const override { return parts_.name; }
  int64_t vocab_size() const override { return static_cast<int64_t>(parts_.token_texts.size()); }
  std::optional<int64_t> bos() const override { return parts_.bos; }
  std::optional<int64_t> eos() const override { return parts_.eos; }
  std::size_t safe_prefix(std::string_view text) const override;

 private:
  struct Scratch;
  std::vector<int32_t> encode_text(std::string_view text,
                                   const EncodeOptions& options) const override;
  std::string decode_ids(std::span<const int64_t> ids, const DecodeOptions& options) const override;
  void encode_chunk(std::string_view text,
                    const EncodeOptions& options,
                    std::vector<int32_t>& ids,
                    Scratch& scratch) const;
  void encode_plain(std::string_view text,
                    bool continues,
                    std::vector<int32_t>& ids,
                    Scratch& scratch) const;
  void find_safe_places();

  BytePairParts parts_;
  Vocabulary vocabulary_;
  TokenFinder raw_tokens_;         // looked for in the text
  TokenFinder normalized_tokens_;  // looked for in normalized text
  std::vector<bool> special_;      // by id
  bool cuts_at_word_ends_ = false;
  bool cuts_after_newlines_ = false;
  mutable ScratchPool<Scratch> scratches_;
};

// Throws reynard::Error for an id outside [0, vocab_size).
void check_ids(std::span<const int64_t> ids, int64_t vocab_size, std::string_view name);

// Where a text may be cut: behind an ASCII letter and before a space, or also behind a single
// newline and before what is no space.
enum class SafePlaces { kWordEnds, kWordEndsAndNewlines };

// The end of the last such place in a text that is followed by more. 0: none.
std::size_t last_safe_place(std::string_view text, SafePlaces places);

// How much of a text (not empty) to encode at once: a few caches full, up to a safe place.
std::size_t chunk_size(const Tokenizer& tokenizer, std::string_view text);

// Calls encode(chunk, continues) for a text, chunk by chunk. continues: the chunk goes on behind
// others, as all but the first do.
template <class Encode>
void for_each_chunk(const Tokenizer& tokenizer,
                    std::string_view text,
                    bool continues,
                    Encode&& encode) {
  while (!text.empty()) {
    const std::size_t size = chunk_size(tokenizer, text);
    encode(text.substr(0, size), continues);
    text.remove_prefix(size);
    continues = true;
  }
}

}  // namespace reynard::tokenizer
