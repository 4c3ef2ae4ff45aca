#pragma once
// Text -> token files: the work of `reynard prepare`. Files are read in parallel and written in
// order, so the result does not depend on the number of threads; memory does not depend on sizes.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace reynard::data {

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;  // files and folders
  std::vector<std::string> patterns;          // of the files in folders (fnmatch); none: all
  std::filesystem::path output;  // folder of train.tokens and held_out.tokens; made if needed
  std::string tokenizer = "byte";
  // Of the objects in .jsonl files; none: "text". Without such a file there must be none.
  std::optional<std::string> field;
  bool dialogues = false;            // inputs are .jsonl files of dialogues (dialogue.h)
  double held_out = 0;               // share of the text for held_out.tokens; 0: no such file
  int64_t min_bytes = 1;             // shorter documents are left out
  bool deduplicate = false;          // leave out documents that came before, byte for byte
  std::optional<int64_t> roll_seed;  // roll long documents by a random shift (FoX appendix C)
  int64_t roll_min_tokens = 4096;    // what a long document is
  int64_t num_threads = 0;           // 0: as many as the machine has
};

struct PreparedFile {
  std::filesystem::path path;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;
  int64_t num_text_bytes = 0;
};

// Files or documents that were left out for one reason.
struct Skipped {
  std::string reason;
  int64_t count = 0;
  std::vector<std::string> names;  // the files, each once; with what is wrong with them
};

struct PrepareSummary {
  int64_t num_files = 0;              // that were read, those that are no text not counted
  std::vector<PreparedFile> written;  // train, then held out
  std::vector<Skipped> skipped;
};

// Called from time to time with the bytes of the inputs that were used, and all of them.
using PrepareProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Throws reynard::Error for bad input and for options that exclude each other; then nothing is left
// behind and files of an earlier run are as they were.
PrepareSummary prepare(const PrepareOptions& options, const PrepareProgress& progress = {});

}  // namespace reynard::data
