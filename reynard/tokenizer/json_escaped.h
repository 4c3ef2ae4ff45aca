#pragma once
// A tokenizer of JSON-escaped text: text is escaped as json.dumps does (outer quotes left out) and
// only then encoded. LongCrawl64 and the models that were trained on it do that with GPT-2's.

#include "reynard/tokenizer/tokenizer.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

class JsonEscapedTokenizer final : public Tokenizer {
 public:
  // add_bos: the template puts BOS before a text.
  explicit JsonEscapedTokenizer(std::unique_ptr<Tokenizer> inner, bool add_bos = false);

  std::string name() const override { return "JSON-escaped " + inner_->name(); }
  int64_t vocab_size() const override { return inner_->vocab_size(); }
  std::optional<int64_t> bos() const override { return inner_->bos(); }
  std::optional<int64_t> eos() const override { return inner_->eos(); }
  std::size_t safe_prefix(std::string_view text) const override;
  std::size_t whole_escapes(std::span<const int64_t> ids, std::size_t most) const override;

 private:
  std::vector<int32_t> encode_text(std::string_view text,
                                   const EncodeOptions& options) const override;
  std::string decode_ids(std::span<const int64_t> ids, const DecodeOptions& options) const override;

  std::unique_ptr<Tokenizer> inner_;
  bool add_bos_;
};

// What text is read as where it is no JSON string: Python's codec "unicode_escape", with what it
// cannot decode left out.
std::string from_unicode_escape(std::string_view bytes);

}  // namespace reynard::tokenizer
