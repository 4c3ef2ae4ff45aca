#pragma once
// A file of token ids, mapped into memory: documents one after the other, each [BOS, text, EOS].
// Layout: docs/formats.md. Everything that the header says is verified when the file is opened;
// ids are verified when they are read.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
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
};

// 2 where every id of the vocabulary fits in 16 bits, else 4.
int64_t token_bytes(int64_t vocab_size);
// Bytes before the first token; the header's JSON is padded to it.
inline constexpr int64_t kTokenFileHeaderBytes = 4096;
// The header as it stands in the file: kTokenFileHeaderBytes bytes.
std::string header_text(const TokenFileHeader& header);

class TokenFile {
 public:
  // Throws reynard::Error when the file is missing, cut short, of another version or inconsistent.
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const TokenFileHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }
  int64_t num_tokens() const { return header_.num_tokens; }
  int64_t num_documents() const { return header_.num_documents; }
  // Positions of a document's first token and of the one after its last.
  int64_t document_begin(int64_t document) const { return document == 0 ? 0 : ends_[document - 1]; }
  int64_t document_end(int64_t document) const { return ends_[document]; }

  // Copies the tokens at [begin, begin + out.size()). Throws reynard::Error for a range outside the
  // file or an id outside the vocabulary.
  void read(int64_t begin, std::span<int64_t> out) const;
  std::vector<int64_t> read(int64_t begin, int64_t count) const;

 private:
  void map();
  void verify_ends() const;

  std::filesystem::path path_;
  TokenFileHeader header_;
  int descriptor_ = -1;
  int64_t size_ = 0;               // bytes of the file
  void* data_ = nullptr;           // the mapped file
  const int64_t* ends_ = nullptr;  // (num_documents)
};

}  // namespace reynard::data
