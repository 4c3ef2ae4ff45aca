#pragma once
// Text <-> token ids. Every tokenizer implements this interface; make_tokenizer() names them.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t bos() const = 0;  // begins every document
  virtual int64_t eos() const = 0;  // ends every document

  // The ids of a text, without BOS and EOS.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The bytes that ids stand for; BOS and EOS stand for none. Throws reynard::Error, naming the
  // position, for an id outside the vocabulary. The bytes need not be UTF-8 when ids end inside a
  // character: pass them through displayable() to show them.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;

  // How much of a piece of text may be encoded now, when more follows, so that the ids are those of
  // the whole text. A tokenizer for which no such place exists returns 0 and gets whole documents.
  virtual std::size_t safe_prefix(std::string_view text) const = 0;
};

// Ids 0-255 are the bytes of the UTF-8 text, 256 is BOS, 257 is EOS.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kBos = 256;
  static constexpr int64_t kEos = 257;
  static constexpr int64_t kVocabSize = 258;

  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return kVocabSize; }
  int64_t bos() const override { return kBos; }
  int64_t eos() const override { return kEos; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> ids) const override;
  std::size_t safe_prefix(std::string_view text) const override { return text.size(); }
};

// name: "byte". Throws reynard::Error for any other.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name);

}  // namespace reynard::tokenizer
