#include "cli/model_tokenizer.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer_folder.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

namespace reynard::cli {

namespace {

// Vocabularies of byte models may be padded, for alignment, but not to that of a byte-pair model.
constexpr int64_t kMaxByteVocabulary = 512;

// A tokenizer that the user names must give the ids that the model's own files give.
void check_is_of_model(const std::filesystem::path& model, const std::string& given) {
  // Escaped text is another text of the same ids.
  if (!tokenizer::holds_tokenizer(model) || tokenizer::parse_name(given).json_escaped) return;
  std::unique_ptr<tokenizer::Tokenizer> own;
  try {
    own = tokenizer::make_tokenizer(model.string());
  } catch (const Error&) {
    return;  // files that cannot be read are a reason to name others
  }
  check_same_tokenizer(*tokenizer::make_tokenizer(given),
                       fmt::format("--tokenizer {}", given),
                       *own,
                       model.string(),
                       "leave --tokenizer out to use the model's own");
}

}  // namespace

std::string tokenizer_of_model(const std::filesystem::path& model,
                               int64_t vocab_size,
                               const std::string& given) {
  if (!given.empty()) {
    check_is_of_model(model, given);
    return given;
  }
  if (tokenizer::holds_tokenizer(model)) return model.string();
  const bool bytes =
      vocab_size >= tokenizer::ByteTokenizer::kVocabSize && vocab_size <= kMaxByteVocabulary;
  return bytes ? "byte" : "";
}

void check_same_tokenizer(const tokenizer::Tokenizer& a,
                          const std::string& a_name,
                          const tokenizer::Tokenizer& b,
                          const std::string& b_name,
                          std::string_view remedy) {
  const int64_t both = std::min(a.vocab_size(), b.vocab_size());
  for (int64_t id = 0; id < both; ++id) {
    const std::array ids = {id};
    const std::string in_a = a.decode(ids, {.keep_special = true});
    const std::string in_b = b.decode(ids, {.keep_special = true});
    if (in_a == in_b) continue;
    throw Error(
        fmt::format("{} and {} are of different tokenizers: the token {} is {:?} and {:?}; {}",
                    a_name,
                    b_name,
                    id,
                    tokenizer::displayable(in_a),
                    tokenizer::displayable(in_b),
                    remedy));
  }
}

}  // namespace reynard::cli
