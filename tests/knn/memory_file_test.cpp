// Files of memories: what was saved is there again, loaded or mapped; damaged and foreign files are
// errors.

#include "reynard/knn/memory.h"

#include "reynard/checkpoint/sha256.h"
#include "reynard/tensor/error.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace reynard::test {
namespace {

using knn::Memory;
using knn::MemoryLayer;

const MemoryLayer kLayer = {
    .model = "fox-\"quoted\"", .layer = 8, .num_heads = 2, .head_dim = 40, .dtype = at::kBFloat16};

// Two rows of unequal length, the second one's ring turned.
Memory filled() {
  Memory memory({.of = kLayer, .num_rows = 2, .capacity = 50});
  const at::Tensor keys = at::randn({2, 70, 2, 40}).to(at::kBFloat16);
  memory.add(keys, keys * 2);
  memory.reset_row(0);
  const at::Tensor more = at::randn({2, 7, 2, 40}).to(at::kBFloat16);
  memory.add(more, more * 2);
  return memory;
}

void expect_same(const Memory& actual, const Memory& expected) {
  ASSERT_EQ(actual.num_rows(), expected.num_rows());
  for (int64_t row = 0; row < expected.num_rows(); ++row) {
    EXPECT_EQ(actual.first_id(row), expected.first_id(row));
    EXPECT_EQ(actual.next_id(row), expected.next_id(row));
    EXPECT_BITWISE_EQUAL(actual.entries(row).keys, expected.entries(row).keys);
    EXPECT_BITWISE_EQUAL(actual.entries(row).values, expected.entries(row).values);
  }
}

TEST(MemoryFile, LoadedIsAsSavedAndGoesOn) {
  const TempDir folder;
  Memory memory = filled();
  memory.save(folder / "layer.memory");
  Memory loaded = Memory::load(folder / "layer.memory", kLayer);
  EXPECT_EQ(loaded.options().capacity, 50);
  expect_same(loaded, memory);
  const at::Tensor more = at::randn({2, 45, 2, 40}).to(at::kBFloat16);
  memory.add(more, more);
  loaded.add(more, more);
  expect_same(loaded, memory);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// Of all files that this process has read so far.
int64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  while (counters >> name >> bytes && name != "rchar:") {
  }
  return bytes;
}

TEST(MemoryFile, IsReadOnce) {
  const int64_t before = bytes_read();
  if (before < 0) GTEST_SKIP() << "/proc/self/io is not there";
  const TempDir folder;
  Memory memory({.of = kLayer});
  const at::Tensor keys = at::randn({1, 4000, 2, 40}).to(at::kBFloat16);
  memory.add(keys, keys);
  memory.save(folder / "layer.memory");
  const auto size = static_cast<int64_t>(std::filesystem::file_size(folder / "layer.memory"));
  const auto bytes_of = [](const auto& read) {
    const int64_t begin = bytes_read();
    read();
    return bytes_read() - begin;
  };
  EXPECT_LT(bytes_of([&] { Memory::load(folder / "layer.memory", kLayer); }), size * 3 / 2);
  EXPECT_LT(bytes_of([&] { Memory::map(folder / "layer.memory", kLayer); }), size * 3 / 2);
}

TEST(MemoryFile, MappedIsSearchedAndReadOnly) {
  const TempDir folder;
  const Memory memory = filled();
  memory.save(folder / "layer.memory");
  Memory mapped = Memory::map(folder / "layer.memory", kLayer);
  expect_same(mapped, memory);
  const at::Tensor queries = at::randn({2, 3, 4, 40});
  const auto found = mapped.search(queries, 20), expected = memory.search(queries, 20);
  EXPECT_BITWISE_EQUAL(found.ids, expected.ids);
  EXPECT_BITWISE_EQUAL(found.scores, expected.scores);
  mapped.code_keys();
  EXPECT_BITWISE_EQUAL(mapped.search(queries.narrow(1, 0, 1), 20).ids,
                       expected.ids.narrow(1, 0, 1));
  EXPECT_BITWISE_EQUAL(mapped.gather(found.ids).values, memory.gather(found.ids).values);
  const at::Tensor more = at::randn({2, 1, 2, 40}).to(at::kBFloat16);
  EXPECT_SAYS(error_of([&] { mapped.add(more, more); }), "read-only; load it instead");
  EXPECT_SAYS(error_of([&] { mapped.reset_row(0); }), "read-only");
}

// Tensors keep the file in the address space after the memory is gone.
TEST(MemoryFile, EntriesOutliveAMappedMemory) {
  const TempDir folder;
  const Memory memory = filled();
  memory.save(folder / "layer.memory");
  const at::Tensor keys = Memory::map(folder / "layer.memory", kLayer).entries(1).keys;
  EXPECT_BITWISE_EQUAL(keys, memory.entries(1).keys);
}

TEST(MemoryFile, EmptyMemoriesAreSavedToo) {
  const TempDir folder;
  Memory({.of = kLayer}).save(folder / "empty.memory");
  EXPECT_EQ(Memory::load(folder / "empty.memory", kLayer).size(0), 0);
  EXPECT_EQ(Memory::map(folder / "empty.memory", kLayer).size(0), 0);
}

TEST(MemoryFile, AnotherLayersFileIsRejected) {
  const TempDir folder;
  filled().save(folder / "layer.memory");
  const auto with = [&](const std::function<void(MemoryLayer&)>& change) {
    MemoryLayer other = kLayer;
    change(other);
    return error_of([&] { Memory::load(folder / "layer.memory", other); });
  };
  EXPECT_SAYS(with([](MemoryLayer& of) { of.model = "llama"; }),
              "belongs to another model: the model's name is \"fox-\\\"quoted\\\"\", "
              "expected \"llama\"");
  EXPECT_SAYS(with([](MemoryLayer& of) { of.layer = 9; }), "layer is 8, expected 9");
  EXPECT_SAYS(with([](MemoryLayer& of) { of.num_heads = 1; }), "num_heads is 2");
  EXPECT_SAYS(with([](MemoryLayer& of) { of.head_dim = 64; }), "head_dim is 40");
  EXPECT_SAYS(with([](MemoryLayer& of) { of.dtype = at::kFloat; }),
              "its keys are bfloat16, those of the model as it computes here float32; give "
              "`reynard remember` and this command the same --dtype");
}

TEST(MemoryFile, CutShortIsRejectedAtEveryLength) {
  const TempDir folder;
  filled().save(folder / "layer.memory");
  const std::string whole = read_file(folder / "layer.memory");
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 100) {
    write_file(folder / "cut.memory", whole.substr(0, size));
    EXPECT_SAYS(error_of([&] { Memory::load(folder / "cut.memory", kLayer); }), " bytes");
    EXPECT_SAYS(error_of([&] { Memory::load(folder / "cut.memory", kLayer); }),
                "make it anew with `reynard remember`");
    EXPECT_SAYS(error_of([&] { Memory::map(folder / "cut.memory", kLayer); }), " bytes");
  }
  write_file(folder / "long.memory", whole + "x");
  EXPECT_SAYS(error_of([&] { Memory::load(folder / "long.memory", kLayer); }),
              "cut short or damaged");
}

TEST(MemoryFile, RowsHoldNoMoreThanTheirCapacity) {
  const TempDir folder;
  const MemoryLayer of{.model = "m", .head_dim = 1, .dtype = at::kFloat};
  Memory memory({.of = of, .capacity = 20});
  memory.add(at::ones({1, 10, 1, 1}), at::ones({1, 10, 1, 1}));
  memory.save(folder / "layer.memory");
  std::string text = read_file(folder / "layer.memory");
  const std::string before = "\"capacity\":20", after = "\"capacity\": 9";
  text.replace(text.find(before), before.size(), after);
  write_file(folder / "layer.memory", text);
  EXPECT_SAYS(error_of([&] { Memory::load(folder / "layer.memory", of); }),
              "row 0 has the ids [0, 10); expected a range from 0 with at most capacity = 9");
}

TEST(MemoryFile, MissingOrForeignIsRejected) {
  const TempDir folder;
  const auto load = [&](const std::string& name) {
    return error_of([&] { Memory::load(folder / name, kLayer); });
  };
  EXPECT_SAYS(load("none"),
              "cannot be opened: No such file or directory; make it anew with `reynard remember`");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_SAYS(load("pipe"), "is not a file");
  EXPECT_SAYS(load("."), "is not a file");
  write_file(folder / "text", std::string(5000, 'x'));
  EXPECT_SAYS(load("text"), "is not a memory file");
  EXPECT_SAYS(error_of([&] { filled().save(folder / "no/such/folder"); }), "cannot be created");
}

// The digest covers all that the header's checks cannot see.
TEST(MemoryFile, ChangedContentIsAnError) {
  const TempDir folder;
  filled().save(folder / "layer.memory");
  const std::string whole = read_file(folder / "layer.memory");
  for (size_t at = 4096 + 64; at < whole.size(); at += 1 + whole.size() / 100) {
    std::string changed = whole;
    changed[at] ^= 1;
    write_file(folder / "changed.memory", changed);
    for (const auto& open :
         {std::function([&] { Memory::load(folder / "changed.memory", kLayer); }),
          std::function([&] { Memory::map(folder / "changed.memory", kLayer); })}) {
      EXPECT_SAYS(error_of(open),
                  "content differs from what was written (its SHA-256); make it anew with "
                  "`reynard remember`")
          << at;
    }
  }
}

TEST(MemoryFile, FilesOfAnotherVersionNameTheRemedy) {
  const TempDir folder;
  filled().save(folder / "layer.memory");
  std::string bytes = read_file(folder / "layer.memory");
  const size_t version = bytes.find("\"version\":2");
  ASSERT_NE(version, std::string::npos);
  bytes[version + 10] = '1';
  write_file(folder / "layer.memory", bytes);
  EXPECT_SAYS(error_of([&] { Memory::load(folder / "layer.memory", kLayer); }),
              "memory file of version 1; this program reads version 2: make it anew with `reynard "
              "remember`");
}

TEST(MemoryFile, TheTextsNameIsKept) {
  const TempDir folder;
  Memory({.of = kLayer, .text = "book"}).save(folder / "layer.memory");
  EXPECT_EQ(Memory::load(folder / "layer.memory", kLayer).options().text, "book");
  EXPECT_SAYS(error_of([] { Memory({.of = kLayer, .text = std::string(65, 'x')}); }),
              "bytes of the text's name = 65; expected 0 ... 64");
}

TEST(MemoryFile, AKeyThatIsNotFiniteIsAnError) {
  const TempDir folder;
  const Memory memory = filled();
  memory.save(folder / "layer.memory");
  std::string bytes = read_file(folder / "layer.memory");
  const uint16_t nan = 0x7fc0;
  std::memcpy(bytes.data() + 4096 + 64, &nan, sizeof(nan));  // first key of row 0, head 0
  bytes.resize(bytes.size() - 64);
  write_file(folder / "layer.memory", bytes + checkpoint::sha256_hex(bytes));
  EXPECT_SAYS(error_of([&] { Memory::load(folder / "layer.memory", kLayer); }), "NaN");
  const Memory mapped = Memory::map(folder / "layer.memory", kLayer);
  EXPECT_SAYS(error_of([&] {
                mapped.search(at::randn({2, 1, 2, 40}), 1);
              }),
              "key 70 of row 0, head 0 holds NaN");
}

// Changed files are read or rejected with an Error; nothing else may happen.
TEST(MemoryFile, ChangedFilesDoNotBreakTheReader) {
  const TempDir folder;
  filled().save(folder / "layer.memory");
  const std::string whole = read_file(folder / "layer.memory");
  const std::vector<std::string> words = {"reynard-memory", "\"num_rows\":", "\"capacity\":", "{"};
  repeat_for(3, 400, [&](uint64_t seed) {
    Mutator random(seed);
    const size_t end = seed % 2 == 0 ? 250 : 4096 + 64;
    write_file(folder / "changed.memory", random.mutate(whole, words, end));
    try {
      Memory::load(folder / "changed.memory", kLayer);
      Memory::map(folder / "changed.memory", kLayer).search(at::randn({2, 1, 2, 40}), 1);
    } catch (const Error&) {
    }
  });
}

}  // namespace
}  // namespace reynard::test
