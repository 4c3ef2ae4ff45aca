#pragma once
// A file of token ids, mapped into memory: documents one after the other, each [BOS, text, EOS],
// and which of the tokens count in the loss.
// Layout: docs/formats.md. Everything that the header says is verified when the file is opened;
// ids are verified when they are read.

#include "reynard/checkpoint/read_only_file.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::data {

struct TokenFileHeader {
  std::string tokenizer = "byte";
  int64_t vocab_size = 0;
  int64_t bos = 0;
  int64_t eos = 0;
  int64_t num_tokens = 0;      // BOS and EOS included
  int64_t num_documents = 0;   // at least 1 in a file
  int64_t num_text_bytes = 0;  // of the text behind the tokens: loss per token -> bits per byte
  std::optional<int64_t> roll_seed = {};  // set: documents were rolled (see prepare.h)
  int64_t num_answers = 0;  // ranges of tokens that count in the loss; 0: every token counts
};

// 2 where every id of the vocabulary fits in 16 bits, else 4.
int64_t token_bytes(int64_t vocab_size);
// Bytes before the first token; the header's JSON is padded to it.
inline constexpr int64_t kTokenFileHeaderBytes = 4096;
inline constexpr std::string_view kTokenFileFormat = "reynard-tokens";
// The header as it stands in the file: kTokenFileHeaderBytes bytes.
std::string header_text(const TokenFileHeader& header);

class TokenFile {
 public:
  // Throws reynard::Error when the file is missing, cut short, of another version or inconsistent.
  explicit TokenFile(const std::filesystem::path& path);

  const TokenFileHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  // Of header, documents and tokens: all bytes of a small file, pieces all over a large one. Tells
  // whether it is the same text; 32 hexadecimal digits.
  std::string fingerprint() const;
  int64_t num_tokens() const { return header_.num_tokens; }
  int64_t num_documents() const { return header_.num_documents; }
  // Positions of a document's first token and of the one after its last.
  int64_t document_begin(int64_t document) const { return document == 0 ? 0 : ends_[document - 1]; }
  int64_t document_end(int64_t document) const { return ends_[document]; }

  // Copies the tokens at [begin, begin + out.size()). Throws reynard::Error for a range outside the
  // file or an id outside the vocabulary.
  void read(int64_t begin, std::span<int64_t> out) const;
  std::vector<int64_t> read(int64_t begin, int64_t count) const;
  // 1 for each of the tokens from begin on that counts in the loss when it is predicted, else 0.
  void read_counted(int64_t begin, std::span<float> out) const;
  // Whether one of the tokens [begin, end) counts.
  bool any_counted(int64_t begin, int64_t end) const;

 private:
  struct Range {
    int64_t begin, end;
  };
  void map();
  void verify_ends() const;
  void verify_answers() const;
  // The first answer that ends behind a position.
  const Range* answer_behind(int64_t position) const;

  checkpoint::ReadOnlyFile file_;
  TokenFileHeader header_;
  const char* data_ = nullptr;      // the mapped file
  const int64_t* ends_ = nullptr;   // (num_documents)
  const Range* answers_ = nullptr;  // (num_answers)
};

}  // namespace reynard::data
