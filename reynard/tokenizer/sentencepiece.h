#pragma once
// The tokenizer of a SentencePiece BPE model: ids and text are those of the library of that name.

#include "reynard/tokenizer/added_tokens.h"
#include "reynard/tokenizer/character_map.h"
#include "reynard/tokenizer/scratch_pool.h"
#include "reynard/tokenizer/sentencepiece_model.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/vocabulary.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

struct SentencePieceOptions {
  bool add_bos = false;  // the template; model files do not say
  bool add_eos = false;
  std::string bos;  // the tokens that begin and end a text; unknown ones: those of the model
  std::string eos;
  // Found in text before anything else. Ids are those of pieces, or follow them.
  std::vector<AddedToken> added_tokens;
  // Text behind an added token is encoded as a text by itself; false: it gets no dummy prefix.
  bool legacy = true;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // where: the file's name in errors. Throws reynard::Error for a model that cannot be used.
  SentencePieceTokenizer(SentencePieceModel model,
                         const SentencePieceOptions& options,
                         const std::string& where);

  std::string name() const override { return "SentencePiece BPE"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  std::optional<int64_t> bos() const override { return bos_; }
  std::optional<int64_t> eos() const override { return eos_; }
  std::size_t safe_prefix(std::string_view text) const override;

 private:
  using Scratch = Vocabulary::Scratch;
  std::vector<int32_t> encode_text(std::string_view text,
                                   const EncodeOptions& options) const override;
  // Control pieces have no text, as in the library, but where their names are asked for.
  std::string decode_ids(std::span<const int64_t> ids, const DecodeOptions& options) const override;
  void add_tokens();
  void encode_chunk(std::string_view text,
                    bool continues,
                    std::vector<int32_t>& ids,
                    Scratch& scratch) const;
  std::string normalized(std::string_view text, bool continues) const;
  struct Replaced {
    std::string_view normal;
    std::size_t length = 0;  // of the text that became it
  };
  Replaced replaced_prefix(std::string_view text) const;  // of a text that is not empty

  SentencePieceModel model_;
  SentencePieceOptions options_;
  std::string space_;  // what a space is in pieces
  CharacterMap characters_;
  Vocabulary vocabulary_;
  TokenFinder added_tokens_;
  TokenFinder user_defined_;
  std::optional<int64_t> bos_;
  std::optional<int64_t> eos_;
  mutable ScratchPool<Scratch> scratches_;
};

}  // namespace reynard::tokenizer
