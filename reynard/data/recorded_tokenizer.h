#pragma once
// The tokenizer of a token file: "byte", or a copy of its files in a folder beside the token file,
// named after what is in it, so that copies of two tokenizers never get into each other's way.

#include "reynard/tokenizer/saved_tokenizer.h"
#include "reynard/tokenizer/tokenizer.h"

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::data {

class TokenFile;

// A tokenizer that token files are being made with.
struct TokenizerRecord {
  std::string name;  // what headers call it
  std::vector<tokenizer::SavedFile> files;
};
// Whether a folder of this name is a copy: "tokenizer-" and 16 hexadecimal digits.
bool is_record_name(std::string_view name);
// Throws reynard::Error when the tokenizer of this name cannot be read.
TokenizerRecord record_of(std::string_view tokenizer);
// Copies it into `folder`, where the token files are that this process alone is writing, also in
// the place of a copy that was changed, and removes what killed processes left of such copies.
// Throws reynard::Error when it cannot be written; then nothing is left of it.
void write_record(const TokenizerRecord& record, const std::filesystem::path& folder);

// Removes copies that no token file of the folder names any more; none where a *.tokens file cannot
// be read. What else lies there stays.
void remove_unused_records(const std::filesystem::path& folder);

// The copy that a token file names. Throws reynard::Error, naming it, when it is missing or was
// changed.
std::unique_ptr<tokenizer::Tokenizer> recorded_tokenizer(const TokenFile& file);
// The same as files, for a model that is trained on the token file to keep.
std::vector<tokenizer::SavedFile> recorded_tokenizer_files(const TokenFile& file);

}  // namespace reynard::data
