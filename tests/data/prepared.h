#pragma once
// Texts in a folder of the test, and what `prepare` makes of them.

#include "reynard/data/prepare.h"
#include "reynard/data/token_file.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace reynard::test {

inline std::string gzip(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// The texts of a token file's documents.
inline std::vector<std::string> texts(const std::filesystem::path& path) {
  const data::TokenFile file(path);
  const auto tokenizer = tokenizer::make_tokenizer(file.header().tokenizer);
  std::vector<std::string> texts;
  for (int64_t d = 0; d < file.num_documents(); ++d) {
    const auto ids =
        file.read(file.document_begin(d), file.document_end(d) - file.document_begin(d));
    EXPECT_EQ(ids.front(), tokenizer->bos());
    EXPECT_EQ(ids.back(), tokenizer->eos());
    texts.push_back(tokenizer->decode(ids));
  }
  return texts;
}

using Texts = std::vector<std::string>;

class Prepare : public testing::Test {
 protected:
  std::filesystem::path add(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / ("in/" + name);
    std::filesystem::create_directories(path.parent_path());
    write_file(path, text);
    return path;
  }
  data::PrepareOptions options(std::vector<std::filesystem::path> inputs) {
    data::PrepareOptions options;
    options.inputs = std::move(inputs);
    options.output = folder_ / "out";
    options.num_threads = 3;
    return options;
  }
  Texts prepared(const data::PrepareOptions& options) {
    data::prepare(options);
    return texts(folder_ / "out/train.tokens");
  }
  std::string error_of(const data::PrepareOptions& options) {
    try {
      data::prepare(options);
    } catch (const Error& error) {
      // Nothing half-written.
      EXPECT_FALSE(std::filesystem::exists(folder_ / "out/train.tokens"));
      EXPECT_TRUE(!std::filesystem::exists(folder_ / "out") ||
                  std::filesystem::is_empty(folder_ / "out"));
      std::string text = error.what();
      const std::string in = (folder_ / "in/").string();
      for (size_t at = text.find(in); at != std::string::npos; at = text.find(in)) {
        text.erase(at, in.size());
      }
      return text;
    }
    return "no error";
  }
  TempDir folder_;
};

}  // namespace reynard::test
