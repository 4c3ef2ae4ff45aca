#pragma once
// A file as a sequence of documents, in pieces: a text file is one document, a line of a .jsonl
// file is one. Text is verified to be UTF-8 on the way.

#include "reynard/data/input_files.h"
#include "reynard/tensor/error.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace reynard::data {

// A file that is not UTF-8 text, where that may be skipped (a file found in a folder).
struct NotText : Error {
  using Error::Error;
};

struct TextReaderOptions {
  std::string field = "text";      // of the objects in .jsonl files
  bool dialogues = false;          // .jsonl files hold dialogues (dialogue.h)
  double held_out_share = 0;       // of the records of a .jsonl file, by the hash of name and line
  int64_t held_out_from_byte = 0;  // > 0: the rest of a text file from here on is held out
  bool held_out = false;           // the whole text file is
};

// Receives documents. Each is begin, text..., end; text between answer(true) and answer(false) is
// an answer.
struct DocumentSink {
  std::function<void(bool held_out)> begin;
  std::function<void(std::string_view piece)> text;
  std::function<void(bool begins)> answer;
  std::function<void()> end;
};

// Whether a text file begins as text and has at least min_bytes of it. What follows its first block
// of a MiB may turn out to be none. Throws reynard::Error for one that cannot be read.
bool begins_as_text(const InputFile& file, int64_t min_bytes);

// Reads the whole file. progress grows by the bytes of the file that were used; setting stop ends
// the reading. Throws NotText (with file and byte offset) for a text file that is not UTF-8 or
// holds a NUL byte, and Error for one that cannot be read, and for a bad line of a .jsonl file.
void read_documents(const InputFile& file,
                    const TextReaderOptions& options,
                    const DocumentSink& sink,
                    std::atomic<int64_t>& progress,
                    const std::atomic<bool>& stop);

}  // namespace reynard::data
