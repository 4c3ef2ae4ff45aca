#include "cli/model_tokenizer.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer_folder.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace reynard::cli {

namespace {

// Vocabularies of byte models may be padded, for alignment, but not to that of a byte-pair model.
constexpr int64_t kMaxByteVocabulary = 512;

}  // namespace

std::string tokenizer_of_model(const std::filesystem::path& model,
                               int64_t vocab_size,
                               const std::string& given) {
  if (!given.empty()) return given;
  if (tokenizer::holds_tokenizer(model)) return model.string();
  const bool bytes =
      vocab_size >= tokenizer::ByteTokenizer::kVocabSize && vocab_size <= kMaxByteVocabulary;
  return bytes ? "byte" : "";
}

void check_same_tokenizer(const tokenizer::Tokenizer& a,
                          const std::string& a_name,
                          const tokenizer::Tokenizer& b,
                          const std::string& b_name) {
  const int64_t both = std::min(a.vocab_size(), b.vocab_size());
  for (int64_t id = 0; id < both; ++id) {
    const std::array ids = {id};
    const std::string in_a = a.decode(ids, {.keep_special = true});
    const std::string in_b = b.decode(ids, {.keep_special = true});
    if (in_a == in_b) continue;
    throw Error(fmt::format(
        "{} and {} are of different tokenizers: the token {} is {:?} and {:?}; prepare the text "
        "with the tokenizer that the model was trained with",
        a_name,
        b_name,
        id,
        tokenizer::displayable(in_a),
        tokenizer::displayable(in_b)));
  }
}

}  // namespace reynard::cli
