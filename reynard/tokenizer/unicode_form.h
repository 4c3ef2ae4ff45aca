#pragma once
// Unicode normalization forms as the package `tokenizers` computes them: with the tables of Unicode
// 9, so that characters that came later stay as they are.

#include <string>
#include <string_view>

namespace reynard::tokenizer {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// text: valid UTF-8.
std::string to_form(std::string_view text, UnicodeForm form);

}  // namespace reynard::tokenizer
