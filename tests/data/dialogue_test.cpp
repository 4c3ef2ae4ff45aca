// Instruction data: from lines of a .jsonl file to rows whose answers count in the loss.

#include "reynard/data/dialogue.h"

#include "reynard/data/loader.h"
#include "reynard/data/prepare.h"
#include "reynard/data/token_file.h"
#include "reynard/data/token_file_writer.h"
#include "reynard/tensor/error.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::data {
namespace {

constexpr int64_t kEnd = 257;  // EOS of the byte tokenizer

PrepareOptions dialogue_options(const test::TempDir& folder, const std::string& lines) {
  test::write_file(folder / "lines.jsonl", lines);
  PrepareOptions options;
  options.inputs = {std::filesystem::path(folder / "lines.jsonl")};
  options.output = std::filesystem::path(folder / "out");
  options.dialogues = true;
  options.num_threads = 1;
  return options;
}

std::string refusal(const std::string& lines) {
  const test::TempDir folder;
  try {
    prepare(dialogue_options(folder, lines));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The bytes of a document that count, EOS as '$'.
std::string counted(const TokenFile& file, int64_t document) {
  const int64_t begin = file.document_begin(document);
  const auto ids = file.read(begin, file.document_end(document) - begin);
  std::vector<float> counts(ids.size());
  file.read_counted(begin, counts);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (counts[i] > 0) text += ids[i] == kEnd ? '$' : static_cast<char>(ids[i]);
  }
  return text;
}

TEST(Dialogues, OnlyAnswersCount) {
  const test::TempDir folder;
  const auto options = dialogue_options(
      folder,
      R"({"prompt": "2+2?", "response": "4"})"
      "\n"
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},)"
      R"( {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"},)"
      R"( {"role": "assistant", "content": "Ciao"}, {"role": "user", "content": "unanswered"}]})"
      "\n");
  prepare(options);
  const TokenFile file(options.output / "train.tokens");
  ASSERT_EQ(file.num_documents(), 2);
  EXPECT_EQ(file.header().num_answers, 3);
  const auto text = [&](int64_t document) {
    const int64_t begin = file.document_begin(document);
    std::string out;
    for (const int64_t id : file.read(begin, file.document_end(document) - begin)) {
      out += id == 256 ? '^' : id == kEnd ? '$' : static_cast<char>(id);
    }
    return out;
  };
  EXPECT_EQ(text(0), "^2+2?\n4$");
  EXPECT_EQ(counted(file, 0), "4$");
  EXPECT_EQ(text(1), "^Be brief.\n\n\nUSER: Hi\nASSISTANT: Hello$\nUSER: Bye\nASSISTANT: Ciao$");
  EXPECT_EQ(counted(file, 1), "Hello$Ciao$");
  EXPECT_TRUE(file.any_counted(0, 8));
  EXPECT_FALSE(file.any_counted(0, 6));
}

// What is learnt from them differs.
TEST(Dialogues, OfEqualTextWithOtherAnswersAreKept) {
  const test::TempDir folder;
  auto options = dialogue_options(folder,
                                  R"({"prompt": "a", "response": "b\nc"})"
                                  "\n"
                                  R"({"prompt": "a\nb", "response": "c"})"
                                  "\n"
                                  R"({"response": "c", "prompt": "a\nb"})"
                                  "\n");
  options.deduplicate = true;
  prepare(options);
  const TokenFile file(options.output / "train.tokens");
  ASSERT_EQ(file.num_documents(), 2);
  EXPECT_EQ(counted(file, 0), "b\nc$");
  EXPECT_EQ(counted(file, 1), "c$");
}

TEST(Dialogues, RefusesWhatNothingIsLearnedFrom) {
  const auto expect = [](const std::string& line, const std::string& why) {
    const std::string message = refusal("{\"prompt\": \"a\", \"response\": \"b\"}\n" + line + "\n");
    EXPECT_NE(message.find(".jsonl:2: "), std::string::npos) << message;
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  expect(R"({"prompt": "a", "response": " \n"})", "the answer \"response\" is empty");
  expect(R"({"messages": [{"role": "assistant", "content": ""}]})", "is empty");
  expect(R"({"messages": [{"role": "user", "content": "a"}]})", "nothing to learn");
  expect(R"({"messages": [{"role": "cat", "content": "a"}]})", "the role \"cat\"");
  expect(R"({"messages": [7]})", "is not an object");
  expect(R"({"messages": {}})", "is not a list");
  expect(R"({"messages": [{"role": "user"}]})", "has no text \"content\"");
  expect(R"({"prompt": "a"})", "has neither");
  expect(R"({"prompt": 1, "response": "b"})", "has no text \"prompt\"");
  expect("[]", "is not a JSON object");
}

TEST(Dialogues, RefusesOtherFilesAndRolling) {
  const test::TempDir folder;
  auto options = dialogue_options(folder, R"({"prompt": "a", "response": "b"})");
  options.roll_seed = 1;
  EXPECT_THROW(prepare(options), Error);
  test::write_file(folder / "book.txt", "text");
  options = dialogue_options(folder, "");
  options.inputs = {std::filesystem::path(folder / "book.txt")};
  EXPECT_THROW(prepare(options), Error);
}

// Ranges that overlap, fall or leave the file, and a number of them that the file does not hold.
TEST(Dialogues, DamagedRangesAreFound) {
  const test::TempDir folder;
  const auto options = dialogue_options(
      folder,
      "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"c\", \"response\": \"d\"}\n");
  prepare(options);
  const std::string path = (options.output / "train.tokens").string();
  const std::string good = test::read_file(path);
  const auto damaged = [&](size_t from_end, int64_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + bytes.size() - from_end, &value, sizeof value);
    test::write_file(path, bytes);
    EXPECT_THROW(TokenFile{path}, Error) << from_end << " " << value;
  };
  damaged(32, -1);
  damaged(24, 3);  // the first: ends where it begins
  damaged(16, 4);  // the second begins within the first
  damaged(8, int64_t{1} << 40);
  std::string bytes = good;
  const std::string count = "\"num_answers\":2";
  bytes.replace(bytes.find(count), count.size(), "\"num_answers\":3");
  test::write_file(path, bytes);
  EXPECT_THROW(TokenFile{path}, Error);
}

// A file with documents of these lengths of question and answer (0: none) over a vocabulary of 17.
std::string write_samples(const test::TempDir& folder,
                          const std::vector<std::pair<int, int>>& lengths) {
  std::string path = folder / "samples.tokens";
  TokenFileWriter writer(path, {.vocab_size = 17, .bos = 15, .eos = 16});
  for (const auto& [question, answer] : lengths) {
    writer.begin_document();
    writer.append(std::vector<int32_t>(question, 1));
    if (answer > 0) {
      writer.begin_answer();
      writer.append(std::vector<int32_t>(answer, 2));
      writer.end_answer();
    }
    writer.end_document(question + answer);
  }
  writer.finish();
  writer.commit();
  return path;
}

LoaderConfig padded(const std::string& path) {
  return {.path = path, .mode = LoaderMode::kPadded, .batch_size = 4, .length = 16, .seed = 3};
}

// Each row is padding, one document, padding; where it lies depends on the seed and is nowhere else
// than anywhere.
TEST(Dialogues, PaddingIsDrawn) {
  const test::TempDir folder;
  const std::string path = write_samples(folder, {{5, 3}});  // 9 pairs: 0 to 7 tokens before it
  std::multiset<int64_t> places;
  const auto loader = make_loader(padded(path));
  const auto same = make_loader(padded(path));
  for (int step = 0; step < 100; ++step) {
    const Batch batch = loader->next();
    EXPECT_BITWISE_EQUAL(batch.padding, same->next().padding);
    for (int64_t b = 0; b < 4; ++b) {
      const int64_t p = batch.padding[b].item<int64_t>();
      places.insert(p);
      for (int64_t t = 0; t < 16; ++t) {
        const bool inside = t >= p && t < p + 9;
        EXPECT_EQ(batch.loss_mask[b][t].item<float>(), inside && t >= p + 5 ? 1 : 0);
        EXPECT_EQ(batch.starts[b][t].item<bool>(), t == 0 || t == p || t == p + 9);
        if (!inside) {
          EXPECT_EQ(batch.tokens[b][t].item<int64_t>(), 16);
        }
      }
      EXPECT_EQ(batch.tokens[b][p].item<int64_t>(), 15);
      EXPECT_EQ(batch.targets[b][p + 8].item<int64_t>(), 16);
    }
  }
  for (int64_t p = 0; p <= 7; ++p) EXPECT_NEAR(places.count(p), 50, 35) << p;
  auto config = padded(path);
  config.random_padding = false;
  EXPECT_EQ(make_loader(config)->next().padding.sum().item<int64_t>(), 0);
}

// Documents are cut at the row's end, and those whose answers lie behind it are passed over.
TEST(Dialogues, LongDocumentsAreCut) {
  const test::TempDir folder;
  const auto loader = make_loader(padded(write_samples(folder, {{30, 5}, {10, 30}, {4, 0}})));
  for (int step = 0; step < 3; ++step) {
    const Batch batch = loader->next();
    EXPECT_EQ(batch.loss_mask.sum(1).eq(6).sum().item<int64_t>(), 4);  // 16 - 10
  }
  EXPECT_THROW(make_loader(padded(write_samples(folder, {{30, 5}, {4, 0}}))), Error);
  auto marked = padded(write_samples(folder, {{3, 3}}));
  marked.answer_mark = 1;
  EXPECT_THROW(make_loader(marked), Error);
}

// All of a repeated piece would count.
TEST(Dialogues, PiecesAreNotRepeated) {
  const test::TempDir folder;
  LoaderConfig config = padded(write_samples(folder, {{9, 9}}));
  config.mode = LoaderMode::kPacked;
  config.repeat_min_length = 4;
  make_loader(config);
  config.repeat_fraction = 0.5;
  EXPECT_THROW(make_loader(config), Error);
}

TEST(Dialogues, ResumesWithTheNextRow) {
  const test::TempDir folder;
  const std::string path = write_samples(folder, {{5, 3}, {2, 2}, {9, 1}});
  const auto loader = make_loader(padded(path));
  for (int step = 0; step < 5; ++step) loader->next();
  const auto resumed = make_loader(padded(path));
  resumed->restore(loader->state());
  const Batch expected = loader->next(), found = resumed->next();
  EXPECT_BITWISE_EQUAL(found.tokens, expected.tokens);
  EXPECT_BITWISE_EQUAL(found.loss_mask, expected.loss_mask);
  EXPECT_BITWISE_EQUAL(found.padding, expected.padding);
  auto other = padded(path);
  other.random_padding = false;
  EXPECT_THROW(make_loader(other)->restore(loader->state()), Error);
}

// Packed rows of the same file: the mask goes with its tokens.
TEST(Dialogues, PackedRowsKeepTheMask) {
  const test::TempDir folder;
  auto config = padded(write_samples(folder, {{3, 2}}));
  config.mode = LoaderMode::kPacked;
  const Batch batch = make_loader(config)->next();
  const at::Tensor answers = batch.targets.eq(2).logical_or(batch.targets.eq(16));
  EXPECT_BITWISE_EQUAL(batch.loss_mask, answers.to(at::kFloat));
}

}  // namespace
}  // namespace reynard::data
