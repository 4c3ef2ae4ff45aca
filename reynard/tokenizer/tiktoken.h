#pragma once
// tiktoken rank files: one token a line, "BASE64 RANK". How text is split and which special tokens
// there are is not in them: known vocabularies are recognised by their size, others name the family
// whose pattern they use.

#include "reynard/tokenizer/byte_pair_tokenizer.h"
#include "reynard/tokenizer/split_pattern.h"

#include <optional>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

// text: the contents of the file; where: its name in errors; pattern: empty for a known vocabulary.
// Throws reynard::Error.
BytePairParts read_tiktoken(std::string_view text,
                            const std::string& where,
                            std::optional<SplitPattern> pattern);

// The first line looks like one of such a file.
bool looks_like_tiktoken(std::string_view text);

}  // namespace reynard::tokenizer
