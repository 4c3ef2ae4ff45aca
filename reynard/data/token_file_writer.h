#pragma once
// Writes a token file: to NAME.partial while it grows, synced and renamed by commit(). Memory does
// not grow with the file. An object that is destroyed before commit() leaves nothing behind.

#include "reynard/data/token_file.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace reynard::data {

struct TokenFileWriterOptions {
  std::string tokenizer = "byte";
  int64_t vocab_size = 0;
  int64_t bos = 0;
  int64_t eos = 0;
  std::optional<int64_t> roll_seed = {};  // set: roll documents
  int64_t roll_min_tokens = 0;            // of documents with at least this many tokens of text
};

// Removes what a killed process left of a file that nobody writes now.
void remove_partial(const std::filesystem::path& path);

class TokenFileWriter {
 public:
  // Throws reynard::Error when the file cannot be made or another process is writing it.
  TokenFileWriter(const std::filesystem::path& path, const TokenFileWriterOptions& options);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  void begin_document();                      // writes BOS
  void append(std::span<const int32_t> ids);  // tokens of its text
  void begin_answer();                        // what is appended now counts in the loss
  void end_answer();                          // writes EOS, which counts too
  void end_document(int64_t num_text_bytes);  // writes EOS, unless an answer ends here
  void drop_document();                       // forgets what begin_document began

  int64_t num_tokens() const { return header_.num_tokens; }  // of ended documents
  int64_t num_documents() const { return header_.num_documents; }

  // Rolls, writes ends and header, syncs. Nothing can be appended after it.
  void finish();
  // Gives the finished file its name.
  void commit();

 private:
  struct Output {  // a file that is written from front to back
    int descriptor = -1;
    std::filesystem::path path;
    std::vector<char> buffer;
    int64_t buffer_begin = 0;  // offset of the buffer's first byte in the file
    void write(const void* data, size_t size);
    void flush();
  };
  void open_partial();  // and locks it
  void open_unnamed(Output& output, const char* suffix);
  void put(int64_t id);
  void roll_documents();
  void append_all(Output& numbers);
  [[noreturn]] void fail(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  TokenFileWriterOptions options_;
  TokenFileHeader header_;
  Output tokens_;
  Output ends_, answers_;        // wait in files without names until the tokens are complete
  std::vector<int64_t> ranges_;  // begins and ends of the open document's answers
  int64_t end_ = 0;              // tokens written, of the open document too
  bool renamed_ = false;
};

}  // namespace reynard::data
