#pragma once
// The splitting patterns of the GPT-2, Llama-3 and Qwen families, matched by hand-written scanners:
// the same pieces as the regular expressions, several times as fast.

#include <optional>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

enum class SplitPattern { kGpt2, kLlama3, kQwen2 };

// The regular expression of a family, as its files quote it.
std::string_view regex_of(SplitPattern pattern);
// The family whose regular expression this is.
std::optional<SplitPattern> split_pattern_of(std::string_view regex);

// Appends the pieces of valid UTF-8 text; they cover it.
void split_text(SplitPattern pattern, std::string_view text, std::vector<std::string_view>& pieces);

// The families' pieces never hold an ASCII letter followed by a space, and none depends on what is
// beyond such a place: a text may be cut there. Returns the last such place (behind the letter);
// 0: none.
std::size_t last_word_end(std::string_view text);

}  // namespace reynard::tokenizer
