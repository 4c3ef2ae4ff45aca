#include "reynard/data/recorded_tokenizer.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/directory.h"
#include "reynard/data/token_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <set>
#include <system_error>

namespace reynard::data {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "tokenizer-";
constexpr size_t kNumDigits = 16;

// The folder of a recorded tokenizer; empty for the byte tokenizer.
fs::path folder_of(const TokenFile& file) {
  const std::string& name = file.header().tokenizer;
  if (name == "byte") return {};
  // A header cannot point anywhere else.
  const bool plain =
      name.starts_with(kPrefix) &&
      name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string::npos;
  if (!plain) {
    throw Error(fmt::format("{}: header: tokenizer = {:?}; expected \"byte\" or \"{}...\"",
                            file.path().string(),
                            name,
                            kPrefix));
  }
  return file.path().parent_path() / name;
}

std::string name_of(const std::vector<tokenizer::SavedFile>& files) {
  return std::string(kPrefix) + tokenizer::fingerprint(files);
}

// The files of a copy that is as its name says; nothing where it is not.
std::optional<std::vector<tokenizer::SavedFile>> unchanged_files(const fs::path& folder) {
  try {
    auto files = tokenizer::saved_files(folder.string());
    if (name_of(files) == folder.filename()) return files;
  } catch (const Error&) {
  }
  return std::nullopt;
}

// Whether a folder is a copy as write_record() leaves it, with nothing of somebody else's in it.
bool is_record(const fs::path& folder) {
  const auto files = unchanged_files(folder);
  if (!files) return false;
  const int64_t with_checksums = std::ssize(*files) + 1;
  return std::distance(fs::directory_iterator(folder), {}) == with_checksums;
}

// What the token file names; nothing where it is none, or cannot be read.
std::optional<std::string> named_tokenizer(const fs::path& file) {
  try {
    return TokenFile(file).header().tokenizer;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool is_record_name(std::string_view name) {
  return name.size() == kPrefix.size() + kNumDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

TokenizerRecord record_of(std::string_view tokenizer) {
  if (tokenizer == "byte") return {.name = "byte", .files = {}};
  TokenizerRecord record{.name = {}, .files = tokenizer::saved_files(tokenizer)};
  record.name = name_of(record.files);
  return record;
}

void write_record(const TokenizerRecord& record, const fs::path& folder) {
  checkpoint::remove_unfinished(folder, kPrefix);
  const fs::path target = folder / record.name;
  if (record.files.empty() || unchanged_files(target)) return;
  checkpoint::FolderWriter writer(target);
  for (const tokenizer::SavedFile& file : record.files) writer.write(file.name, file.contents);
  writer.commit();
}

void remove_unused_records(const fs::path& folder) {
  std::set<std::string> named;
  std::vector<fs::path> records;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file()) {
      const auto tokenizer = named_tokenizer(entry.path());
      if (tokenizer) named.insert(*tokenizer);
      // A damaged one may name any of them.
      if (!tokenizer && entry.path().extension() == ".tokens") return;
    }
    if (name.starts_with(kPrefix) && entry.is_directory() && !entry.is_symlink()) {
      records.push_back(entry.path());
    }
  }
  for (const fs::path& record : records) {
    const std::string name = record.filename().string();
    if (named.contains(name) || !is_record(record)) continue;
    // Under this name write_record() removes what is left of it where this process is killed.
    const fs::path doomed = folder / fmt::format("{}{}-unused", checkpoint::kTemporaryPrefix, name);
    std::error_code ignored;  // one that stays takes only its space
    fs::rename(record, doomed, ignored);
    fs::remove_all(doomed, ignored);
  }
}

std::vector<tokenizer::SavedFile> recorded_tokenizer_files(const TokenFile& file) {
  const fs::path folder = folder_of(file);
  if (folder.empty()) return tokenizer::saved_files("byte");
  if (!fs::exists(folder)) {
    throw Error(
        fmt::format("{}: is missing: the tokenizer of {}, which `reynard prepare` puts beside it",
                    folder.string(),
                    file.path().string()));
  }
  std::vector<tokenizer::SavedFile> files = tokenizer::saved_files(folder.string());
  if (name_of(files) != folder.filename()) {
    throw Error(
        fmt::format("{}: was changed after {} was made with it; run `reynard prepare` again",
                    folder.string(),
                    file.path().string()));
  }
  return files;
}

std::unique_ptr<tokenizer::Tokenizer> recorded_tokenizer(const TokenFile& file) {
  const fs::path folder = folder_of(file);
  if (folder.empty()) return tokenizer::make_tokenizer("byte");
  recorded_tokenizer_files(file);  // they are those that the name says
  return tokenizer::make_tokenizer(folder.string());
}

}  // namespace reynard::data
