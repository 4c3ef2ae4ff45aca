#pragma once
// Text <-> token ids. Every tokenizer implements this interface; make_tokenizer() opens them by
// name, file or folder.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

struct EncodeOptions {
  bool add_template = false;  // the tokens that the tokenizer puts around a text (BOS, EOS)
  bool continues = false;     // the text follows a safe_prefix() that was encoded before
  bool behind_token = false;  // the text follows a special token that was put before it
};

struct DecodeOptions {
  bool keep_special = false;  // special tokens (BOS, EOS, ...) as their names, else as nothing
  bool raw_bytes = false;  // a character that the ids end within as the bytes that are there of it
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;  // what it is, for people
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int64_t> bos() const = 0;  // begins a text
  virtual std::optional<int64_t> eos() const = 0;  // ends a text

  // The ids of a text. Bytes that are not UTF-8 count as U+FFFD (not for the byte tokenizer).
  // Several threads may encode at once.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const {
    return encode_text(text, options);
  }
  // The bytes that ids stand for. Throws reynard::Error, naming the position, for an id outside the
  // vocabulary. The bytes need not be UTF-8 when ids end inside a character: pass them through
  // displayable() to show them.
  std::string decode(std::span<const int64_t> ids, const DecodeOptions& options = {}) const {
    return decode_ids(ids, options);
  }

  // How much of a piece of text may be encoded now, when more follows, so that the ids (of what
  // follows: with EncodeOptions::continues) are those of the whole text. A tokenizer for which no
  // such place exists returns 0 and gets whole documents.
  virtual std::size_t safe_prefix(std::string_view text) const = 0;

  // The largest number of ids, up to `most`, that may be left out before the others are decoded:
  // those of whole escapes. `most`: at most ids.size(), whose ids are in the vocabulary.
  virtual std::size_t whole_escapes(std::span<const int64_t> /*ids*/, std::size_t most) const {
    return most;
  }

 private:
  virtual std::vector<int32_t> encode_text(std::string_view text,
                                           const EncodeOptions& options) const = 0;
  virtual std::string decode_ids(std::span<const int64_t> ids,
                                 const DecodeOptions& options) const = 0;
};

// Ids 0-255 are the bytes of the UTF-8 text, 256 is BOS, 257 is EOS. Its template adds nothing.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kBos = 256;
  static constexpr int64_t kEos = 257;
  static constexpr int64_t kVocabSize = 258;

  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return kVocabSize; }
  std::optional<int64_t> bos() const override { return kBos; }
  std::optional<int64_t> eos() const override { return kEos; }
  std::size_t safe_prefix(std::string_view text) const override { return text.size(); }

 private:
  std::vector<int32_t> encode_text(std::string_view text,
                                   const EncodeOptions& options) const override;
  std::string decode_ids(std::span<const int64_t> ids, const DecodeOptions& options) const override;
};

// name: "byte"; or a file: tokenizer.json, a tiktoken rank file, a SentencePiece model; or a folder
// that holds one, or vocab.json and merges.txt. "json:" before it: the tokenizer of JSON-escaped
// text; "gpt2:", "llama3:" or "qwen2:": the splitting pattern of a tiktoken file. Throws
// reynard::Error for anything else, and naming what is not supported.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name);

}  // namespace reynard::tokenizer
