#include "reynard/data/token_file.h"

#include "reynard/data/token_file_writer.h"
#include "reynard/tensor/error.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <thread>

namespace {
std::atomic<bool> without_locks = false;
}

// In the place of libc's: a file system may have no locks.
extern "C" int flock(int descriptor, int operation) noexcept {
  if (!without_locks) return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  errno = ENOLCK;
  return -1;
}

namespace {

using namespace reynard;
using data::TokenFile;
using data::TokenFileWriter;
using data::TokenFileWriterOptions;

using Documents = std::vector<std::vector<int32_t>>;  // texts, without BOS and EOS

void write(const std::string& path, const Documents& documents, TokenFileWriterOptions options) {
  TokenFileWriter writer(path, options);
  for (const auto& text : documents) {
    writer.begin_document();
    writer.append(text);
    writer.end_document(static_cast<int64_t>(text.size()));
  }
  writer.finish();
  writer.commit();
}

constexpr TokenFileWriterOptions bytes() {
  return {.tokenizer = "byte", .vocab_size = 258, .bos = 256, .eos = 257};
}

std::vector<int64_t> document(const TokenFile& file, int64_t d) {
  return file.read(file.document_begin(d), file.document_end(d) - file.document_begin(d));
}

TEST(TokenFile, HoldsDocumentsBetweenBosAndEos) {
  const test::TempDir folder;
  write(folder / "a.tokens", {{1, 2, 3}, {}, {4}}, bytes());
  const TokenFile file(folder / "a.tokens");
  EXPECT_EQ(file.num_documents(), 3);
  EXPECT_EQ(file.num_tokens(), 10);
  EXPECT_EQ(file.header().num_text_bytes, 4);
  EXPECT_EQ(file.header().tokenizer, "byte");
  EXPECT_EQ(document(file, 0), (std::vector<int64_t>{256, 1, 2, 3, 257}));
  EXPECT_EQ(document(file, 1), (std::vector<int64_t>{256, 257}));
  EXPECT_EQ(document(file, 2), (std::vector<int64_t>{256, 4, 257}));
  EXPECT_THROW(file.read(8, 3), Error);
  EXPECT_THROW(file.read(-1, 1), Error);
  EXPECT_THROW(file.read(0, int64_t{1} << 60), Error);
  EXPECT_THROW(file.read(0, -1), Error);
}

TEST(TokenFile, WhatIsWrittenIsRead) {
  EXPECT_TRUE(rc::check([] {
    const test::TempDir folder;
    TokenFileWriterOptions options{.tokenizer = "x", .bos = 0, .eos = 1};
    options.vocab_size = *rc::gen::element<int64_t>(258, 65536, 65537, 200000);
    const auto id = rc::gen::inRange<int32_t>(0, static_cast<int32_t>(options.vocab_size));
    auto documents = *rc::gen::container<Documents>(rc::gen::container<std::vector<int32_t>>(id));
    documents.push_back({7});
    write(folder / "a.tokens", documents, options);
    const TokenFile file(folder / "a.tokens");
    RC_ASSERT(file.num_documents() == static_cast<int64_t>(documents.size()));
    for (size_t d = 0; d < documents.size(); ++d) {
      std::vector<int64_t> expected{0};
      expected.insert(expected.end(), documents[d].begin(), documents[d].end());
      expected.push_back(1);
      RC_ASSERT(document(file, static_cast<int64_t>(d)) == expected);
    }
  }));
}

TEST(TokenFileWriter, DroppedDocumentsLeaveNoTrace) {
  const test::TempDir folder;
  const std::vector<int32_t> longer_than_the_buffer(3 << 20, 9);
  TokenFileWriter writer(folder / "a.tokens", bytes());
  for (const bool keep : {true, false, true, false}) {
    writer.begin_document();
    writer.append(keep ? std::vector<int32_t>{5} : longer_than_the_buffer);
    keep ? writer.end_document(1) : writer.drop_document();
  }
  writer.begin_document();  // one that never ends
  writer.append(longer_than_the_buffer);
  writer.finish();
  writer.commit();
  write(folder / "b.tokens", {{5}, {5}}, bytes());
  EXPECT_EQ(test::read_file(folder / "a.tokens"), test::read_file(folder / "b.tokens"));
}

TEST(TokenFileWriter, NothingIsLeftBehindWithoutCommit) {
  const test::TempDir folder;
  {
    TokenFileWriter writer(folder / "a.tokens", bytes());
    writer.begin_document();
    EXPECT_THROW(TokenFileWriter(folder / "a.tokens", bytes()), Error);  // being written
    writer.finish();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(TokenFileWriter(folder / "no_folder/a.tokens", bytes()), Error);
}

TEST(TokenFileWriter, WritesWhereThereAreNoLocks) {
  const test::TempDir folder;
  without_locks = true;
  const std::string error = test::error_of([&] {
    write(folder / "a.tokens", {{1, 2, 3}}, bytes());
  });
  without_locks = false;
  EXPECT_EQ(error, "no error");
  EXPECT_EQ(TokenFile(folder / "a.tokens").num_tokens(), 5);
}

// Names that others can guess must not lead to files of theirs.
TEST(TokenFileWriter, FollowsNoLinks) {
  const test::TempDir folder;
  test::write_file(folder / "theirs", "text");
  for (const char* suffix : {".partial", ".ends.partial", ".answers.partial"}) {
    const auto link = folder / (std::string("a.tokens") + suffix);
    std::filesystem::create_symlink(folder / "theirs", link);
    EXPECT_SAYS(test::error_of([&] { write(folder / "a.tokens", {{1}}, bytes()); }),
                "cannot be made");
    EXPECT_EQ(test::read_file(folder / "theirs"), "text");
    std::filesystem::remove(link);
  }
}

// The loser of a race may open what the winner is about to rename.
TEST(TokenFileWriter, WritersAtOnceLeaveOneWholeFile) {
  const test::TempDir folder;
  const std::string path = folder / "a.tokens";
  std::atomic<int> written = 0;
  const auto write_often = [&](int32_t id) {
    for (int i = 0; i < 100; ++i) {
      try {
        write(path, {{id, id, id}}, bytes());
        ++written;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("is being written by another process"),
                  std::string::npos)
            << error.what();
      }
    }
  };
  std::thread other(write_often, 1);
  write_often(2);
  other.join();
  EXPECT_GT(written, 0);
  EXPECT_EQ(TokenFile(path).num_tokens(), 5);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(TokenFileWriter, RollIsARotationOfTheTextOfLongDocuments) {
  EXPECT_TRUE(rc::check([] {
    const test::TempDir folder;
    Documents documents;
    const auto lengths = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 40));
    for (const int length : lengths) {
      documents.emplace_back();
      for (int i = 0; i < length; ++i) documents.back().push_back(i);
    }
    documents.push_back({0});
    TokenFileWriterOptions options = bytes();
    options.roll_seed = *rc::gen::inRange(0, 100);
    options.roll_min_tokens = 8;
    write(folder / "a.tokens", documents, options);
    const TokenFile file(folder / "a.tokens");
    for (size_t d = 0; d < documents.size(); ++d) {
      const auto rolled = document(file, static_cast<int64_t>(d));
      const auto size = static_cast<int64_t>(documents[d].size());
      RC_ASSERT(rolled.front() == 256);
      RC_ASSERT(rolled.back() == 257);
      const int64_t first = size == 0 ? 0 : rolled[1];
      if (size < 8) RC_ASSERT(first == 0);  // short: as it was
      for (int64_t i = 0; i < size; ++i) {
        RC_ASSERT(rolled[static_cast<size_t>(i + 1)] == (first + i) % size);
      }
    }
  }));
}

TEST(TokenFileWriter, RollDependsOnTheSeedAndTheDocument) {
  const test::TempDir folder;
  std::vector<int32_t> text(200);
  for (int i = 0; i < 200; ++i) text[static_cast<size_t>(i)] = i;
  std::set<int64_t> shifts;
  for (const int64_t seed : {1, 2}) {
    TokenFileWriterOptions options = bytes();
    options.roll_seed = seed;
    write(folder / "a.tokens", {text, text}, options);
    const TokenFile file(folder / "a.tokens");
    EXPECT_EQ(file.header().roll_seed, seed);
    shifts.insert(file.read(1, 1)[0]);
    shifts.insert(file.read(203, 1)[0]);
  }
  EXPECT_EQ(shifts.size(), 4U);
}

std::string error_of(const std::filesystem::path& path) {
  return test::error_of([&] { const TokenFile file(path); });
}

class BadTokenFile : public testing::Test {
 protected:
  BadTokenFile() {
    write(folder_ / "a.tokens", {{1, 2, 3}, {4, 5}}, bytes());
    good_ = test::read_file(folder_ / "a.tokens");
  }
  std::string error_with(std::string_view text) {
    test::write_file(folder_ / "b.tokens", text);
    return error_of(folder_ / "b.tokens");
  }
  std::string replaced(const std::string& from, const std::string& to) {
    std::string text = good_;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    // Keep the header's size: take or give blanks.
    if (to.size() > from.size()) text.erase(4000, to.size() - from.size());
    if (to.size() < from.size()) text.insert(4000, from.size() - to.size(), ' ');
    return text;
  }
  test::TempDir folder_;
  std::string good_;
};

TEST_F(BadTokenFile, IsAnErrorThatNamesTheFileAndTheFault) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? "" : text;
  };
  EXPECT_EQ(has(error_of(folder_ / "none"), "none: cannot be opened: No such file"), "");
  EXPECT_EQ(has(error_of(folder_.path()), "is not a file"), "");
  EXPECT_EQ(has(error_with(""), "b.tokens: is empty"), "");
  EXPECT_EQ(has(error_with("some text"), "is not a token file"), "");
  EXPECT_EQ(has(error_with(good_.substr(0, 60)), "not valid JSON"), "");
  EXPECT_EQ(has(error_with(good_.substr(0, 4096)), "cut short"), "");
  EXPECT_EQ(has(error_with(good_.substr(0, good_.size() - 1)), "cut short"), "");
  EXPECT_EQ(has(error_with(good_ + "x"), "damaged"), "");
  EXPECT_EQ(has(error_with(replaced("\"version\":1", "\"version\":3")), "version 3"), "");
  EXPECT_EQ(has(error_with(replaced("\"dtype\":\"uint16\"", "\"dtype\":\"uint32\"")), "dtype"), "");
  EXPECT_EQ(has(error_with(replaced("\"bos\":256", "\"bos\":999")), "bos = 999"), "");
  EXPECT_EQ(has(error_with(replaced("\"bos\":256", "\"bos\":2.5")), "bos = 2.5"), "");
  EXPECT_EQ(has(error_with(replaced("\"num_tokens\":9", "\"num_tokens\":-9")), "num_tokens"), "");
  EXPECT_EQ(has(error_with(replaced("\"num_tokens\":9", "\"num_tokens\":99999999999999999999")),
                "num_tokens"),
            "");
  EXPECT_EQ(has(error_with(replaced("\"num_documents\":2", "\"num_documents\":3")), "cut short"),
            "");
  EXPECT_EQ(has(error_with(replaced("\"eos\":257,", "")), "no \"eos\""), "");
}

// Other programs write such files too: any JSON object that begins with "format" is a header.
TEST_F(BadTokenFile, IsNotOneWithBlanksOrLaterMembersInAnotherOrder) {
  const std::string format = R"({"format":"reynard-tokens",)";
  const std::vector<std::string> begins = {R"({"format": "reynard-tokens",)",
                                           "{\n\t\"format\" :\r\n \"reynard-tokens\" , ",
                                           " {\"format\":\"reynard-tokens\",",
                                           R"({"format":"reynard\u002dtokens",)",
                                           R"({"format":"reynard-tokens","eos": 257, "bos": 256,)"};
  for (const std::string& begin : begins) {
    SCOPED_TRACE(begin);
    test::write_file(folder_ / "b.tokens", replaced(format, begin));
    EXPECT_EQ(error_of(folder_ / "b.tokens"), "no error");
    EXPECT_EQ(document(TokenFile(folder_ / "b.tokens"), 1), (std::vector<int64_t>{256, 4, 5, 257}));
  }
}

TEST_F(BadTokenFile, FormatIsItsFirstMember) {
  const std::string format = R"({"format":"reynard-tokens",)";
  EXPECT_SAYS(error_with(replaced(format, R"({"tokens":1,"format":"reynard-tokens",)")),
              "header: \"format\" is not its first member");
  for (const char* other : {R"({"format":"reynard-memory",)",
                            R"({"format":["reynard-tokens"],)",
                            R"({"format":null,"x":"reynard-tokens",)",
                            R"([{"format":"reynard-tokens",)",
                            R"({"x":{"format":"reynard-tokens"},)"}) {
    EXPECT_SAYS(error_with(replaced(format, other)), "is not a token file");
  }
  EXPECT_SAYS(error_with(replaced(format, format + R"("nested":[1],)")), "not valid JSON");
}

TEST_F(BadTokenFile, DocumentEndsMustGrowToTheEnd) {
  for (const int64_t first : {int64_t{0}, int64_t{-1}, int64_t{9}, int64_t{1} << 62}) {
    std::string text = good_;
    std::memcpy(text.data() + text.size() - 16, &first, 8);
    EXPECT_NE(error_with(text).find("document"), std::string::npos) << first;
  }
  const int64_t last = 8;
  std::string text = good_;
  std::memcpy(text.data() + text.size() - 8, &last, 8);
  EXPECT_NE(error_with(text).find("the last document ends at token 8; expected 9"),
            std::string::npos);
}

TEST_F(BadTokenFile, IdsOutsideTheVocabularyAreFoundWhenRead) {
  std::string text = good_;
  text[4096 + 2 * 2 + 1] = 7;  // token 2 becomes 2 + 7 * 256
  test::write_file(folder_ / "b.tokens", text);
  const TokenFile file(folder_ / "b.tokens");
  EXPECT_THROW(file.read(0, 9), Error);
}

// Nobody writes into it: who opened it to wait would wait for ever.
TEST_F(BadTokenFile, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_SAYS(test::error_of([&] { TokenFile(folder_ / "pipe"); }), "is not a file");
}

TEST_F(BadTokenFile, MutationsNeverCrash) {
  const std::string path = folder_ / "c.tokens";
  test::repeat_for(8, 8000, [&](uint64_t i) {
    SCOPED_TRACE(i);
    test::Mutator mutator(i);
    std::string text = good_;
    if (i % 2) {  // the header, its size kept
      const std::string header = mutator.mutate(good_.substr(0, 230));
      text.replace(0, std::min<size_t>(header.size(), 4096), header.substr(0, 4096));
    } else {  // tokens and document ends
      text = good_.substr(0, 4096) + mutator.mutate(good_.substr(4096));
    }
    test::write_file(path, text);
    try {
      const TokenFile file(path);
      for (int64_t d = 0; d < file.num_documents(); ++d) document(file, d);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  });
}

}  // namespace
