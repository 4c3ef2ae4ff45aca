#pragma once
// Files of text that are read whole.

#include <cstdint>
#include <filesystem>
#include <string>

namespace reynard::config {

// The bytes of a file, or of a pipe until it ends. Throws reynard::Error, naming the file, where it
// is a folder, cannot be read or has more than max_bytes, of which no more are held.
std::string read_text_file(const std::filesystem::path& file, uintmax_t max_bytes);

}  // namespace reynard::config
