#pragma once
// Copies of tokenizers, for what is made with one (token files, models) to keep: a few small files
// that make the same tokenizer in any folder.

#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

struct SavedFile {
  std::string name;  // in its folder
  std::string contents;
};

// The files that make_tokenizer(folder) needs to be make_tokenizer(name). Throws reynard::Error as
// make_tokenizer does.
std::vector<SavedFile> saved_files(std::string_view name);

// 16 hexadecimal digits over names and contents: tells copies of different tokenizers apart (it
// is no protection against those who mean harm).
std::string fingerprint(const std::vector<SavedFile>& files);

}  // namespace reynard::tokenizer
