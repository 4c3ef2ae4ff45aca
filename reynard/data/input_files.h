#pragma once
// Which files `prepare` reads, in an order that does not depend on the machine.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace reynard::data {

struct InputFile {
  std::filesystem::path path;
  std::string name;          // relative to the folder that was given; a given file's own name
  int64_t size = 0;          // bytes on disk
  bool from_folder = false;  // found in a folder: skipped, not an error, when it is not text

  // By the name: x.jsonl, also under .gz or .zst.
  bool is_jsonl() const;
  bool is_compressed() const;
};

struct InputFiles {
  std::vector<InputFile> files;
  // Found in folders: links to folders, which are not followed, and what is neither file nor
  // folder, as links that lead nowhere; and what is a file of the list by another path or link.
  std::vector<std::filesystem::path> links, others, again;
  // Also found in folders: the output, and folders that are called like copies of tokenizers;
  // hidden files that match the patterns, and hidden folders.
  std::vector<std::filesystem::path> earlier, hidden;
};

// inputs: files and folders. Files of a folder are taken recursively, sorted by name, when their
// relative name or file name matches one of the patterns (fnmatch; none: all); hidden files and
// folders are left out. output: the file or folder that is going to be written, which an earlier
// run may have written to a folder of the inputs. Throws reynard::Error for an input that is
// missing or neither file nor folder, for a file that is named though it is in the list, by
// whatever path or link, and when nothing matches.
InputFiles find_input_files(const std::vector<std::filesystem::path>& inputs,
                            const std::vector<std::string>& patterns,
                            const std::filesystem::path& output = {});

// The field of the text in lines of .jsonl files: the one that was given, or "text". Throws
// reynard::Error for one that no file has lines for.
std::string text_field(const std::optional<std::string>& given,
                       const std::vector<InputFile>& files);

// Which of the text files, each a document, are held out: in the order of the hash of their names,
// every file that still fits into the share of the bytes; of two or more at least one and not all.
// One flag per file.
std::vector<bool> choose_held_out(const std::vector<InputFile>& texts, double share);

}  // namespace reynard::data
