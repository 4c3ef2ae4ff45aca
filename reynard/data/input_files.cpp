#include "reynard/data/input_files.h"

#include "reynard/data/random.h"
#include "reynard/data/recorded_tokenizer.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

namespace reynard::data {

namespace fs = std::filesystem;

namespace {

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  const std::string file_name = fs::path(name).filename().string();
  return patterns.empty() ||
         std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 ||
                  fnmatch(pattern.c_str(), file_name.c_str(), 0) == 0;
         });
}

InputFiles files_of_folder(const fs::path& folder,
                           const std::vector<std::string>& patterns,
                           const fs::path& output) {
  InputFiles found;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code gone;  // a link to nowhere, a file removed meanwhile
    const bool is_folder = entry->is_directory(gone);
    const std::string name = entry->path().lexically_relative(folder).generic_string();
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
      if (is_folder || matches(name, patterns)) found.hidden.push_back(entry->path());
      continue;
    }
    if (is_folder && entry->is_symlink(gone)) found.links.push_back(entry->path());
    const bool is_copy = is_folder && is_record_name(entry->path().filename().string());
    if (is_copy || fs::equivalent(entry->path(), output, gone)) {
      entry.disable_recursion_pending();
      found.earlier.push_back(entry->path());
      continue;
    }
    if (is_folder || !matches(name, patterns)) continue;
    if (!entry->is_regular_file(gone)) {
      found.others.push_back(entry->path());
      continue;
    }
    const auto size = entry->file_size(gone);
    if (!gone) found.files.push_back({entry->path(), name, static_cast<int64_t>(size), true});
  }
  if (error) {
    throw Error(fmt::format("{}: cannot be listed: {}", folder.string(), error.message()));
  }
  std::ranges::sort(found.files, {}, &InputFile::name);
  std::ranges::sort(found.links);
  std::ranges::sort(found.others);
  std::ranges::sort(found.earlier);
  std::ranges::sort(found.hidden);
  return found;
}

fs::path without_compression(const fs::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst" ? path.stem() : path;
}

// A text that is read twice counts twice, and may be held out and trained on. Folders may hold
// links to their own files.
void take_each_once(InputFiles& all) {
  std::map<std::pair<dev_t, ino_t>, fs::path> known;
  std::vector<InputFile> files;
  for (const InputFile& file : all.files) {
    struct stat status = {};
    const bool is_gone = stat(file.path.c_str(), &status) != 0;
    const auto [other, is_new] = known.emplace(std::pair(status.st_dev, status.st_ino), file.path);
    if (is_new || is_gone) {
      files.push_back(file);
    } else if (file.from_folder) {
      all.again.push_back(file.path);
    } else {
      throw Error(file.path == other->second
                      ? fmt::format("{}: is given twice; give it once", file.path.string())
                      : fmt::format("{} and {} are one file; give it once",
                                    other->second.string(),
                                    file.path.string()));
    }
  }
  all.files = std::move(files);
}

}  // namespace

bool InputFile::is_jsonl() const {
  return without_compression(path).extension() == ".jsonl";
}
bool InputFile::is_compressed() const {
  return without_compression(path) != path;
}

InputFiles find_input_files(const std::vector<fs::path>& inputs,
                            const std::vector<std::string>& patterns,
                            const fs::path& output) {
  InputFiles all;
  for (const fs::path& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (status.type() == fs::file_type::not_found) {
      throw Error(fmt::format("{}: there is no such file or folder", input.string()));
    }
    if (fs::is_directory(status)) {
      const InputFiles found = files_of_folder(input, patterns, output);
      all.files.insert(all.files.end(), found.files.begin(), found.files.end());
      all.links.insert(all.links.end(), found.links.begin(), found.links.end());
      all.others.insert(all.others.end(), found.others.begin(), found.others.end());
      all.earlier.insert(all.earlier.end(), found.earlier.begin(), found.earlier.end());
      all.hidden.insert(all.hidden.end(), found.hidden.begin(), found.hidden.end());
    } else if (fs::is_regular_file(status)) {
      const auto size = static_cast<int64_t>(fs::file_size(input, error));
      all.files.push_back({input, input.filename().string(), size, false});
    } else {
      throw Error(fmt::format("{}: is neither a file nor a folder", input.string()));
    }
  }
  if (all.files.empty()) {
    throw Error(
        (patterns.empty()
             ? fmt::format("{}: holds no files", inputs.empty() ? "" : inputs.front().string())
             : fmt::format("no file matches --glob {}", fmt::join(patterns, " --glob "))) +
        (all.links.empty() ? ""
                           : fmt::format("; {} is a link to a folder: to read it, name it itself",
                                         all.links.front().string())));
  }
  take_each_once(all);
  return all;
}

std::string text_field(const std::optional<std::string>& given,
                       const std::vector<InputFile>& files) {
  if (given && std::ranges::none_of(files, &InputFile::is_jsonl)) {
    throw Error(fmt::format(
        "--field {}: none of the files is .jsonl, whose lines have fields; leave it out", *given));
  }
  return given.value_or("text");
}

std::vector<bool> choose_held_out(const std::vector<InputFile>& texts, double share) {
  struct Candidate {
    uint64_t hash;
    size_t index;
  };
  std::vector<Candidate> candidates;
  double total = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    candidates.push_back({hash(texts[i].name), i});
    total += static_cast<double>(texts[i].size);
  }
  std::vector<bool> held(texts.size(), false);
  if (texts.size() < 2) return held;
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.hash != b.hash ? a.hash < b.hash : a.index < b.index;
  });
  double taken = 0;
  size_t smallest = candidates.front().index;
  for (const auto& [hash, index] : candidates) {
    const auto size = static_cast<double>(texts[index].size);
    if (size > 0 && (texts[smallest].size == 0 || texts[index].size < texts[smallest].size)) {
      smallest = index;
    }
    if (size > 0 && taken + size <= share * total) {
      held[index] = true;
      taken += size;
    }
  }
  if (taken == 0) held[smallest] = true;
  return held;
}

}  // namespace reynard::data
