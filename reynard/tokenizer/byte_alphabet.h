#pragma once
// The printable characters that stand for bytes in byte-level vocabularies: GPT-2's table, in which
// "Ġ" is a space.

#include <optional>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

// The bytes that a token's characters stand for; nothing where one stands for none.
std::optional<std::string> bytes_of_characters(std::string_view token);
// The reverse.
std::string characters_of_bytes(std::string_view bytes);

}  // namespace reynard::tokenizer
