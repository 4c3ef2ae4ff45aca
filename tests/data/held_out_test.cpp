// Texts that are held out of training.

#include "reynard/checkpoint/lock.h"
#include "reynard/data/input_files.h"
#include "tests/data/prepared.h"
#include "tests/support/errors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {
std::string_view name_nothing_gets;  // empty: every name can be given
}

// In the place of libc's: a process may be killed between two of them.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (name_nothing_gets.empty() || !std::string_view(to).ends_with(name_nothing_gets)) {
    return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  }
  errno = EIO;
  return -1;
}

namespace reynard::test {
namespace {

TEST_F(Prepare, HoldsOutWholeFilesByTheirNames) {
  std::map<std::string, int> all;
  for (int i = 0; i < 40; ++i) {
    const std::string text = "file " + std::to_string(100 + i);
    add(std::to_string(i) + ".txt", text);
    ++all[text];
  }
  auto split = options({folder_ / "in"});
  split.held_out = 0.25;
  data::prepare(split);
  const Texts held = texts(folder_ / "out/held_out.tokens");
  EXPECT_EQ(held.size(), 10U);
  std::map<std::string, int> seen;
  for (const std::string& text : held) ++seen[text];
  for (const std::string& text : texts(folder_ / "out/train.tokens")) ++seen[text];
  EXPECT_EQ(seen, all);
  // The choice depends on the names only: the same files elsewhere are split in the same way.
  std::filesystem::rename(folder_ / "in", folder_ / "moved");
  split.inputs = {folder_ / "moved"};
  data::prepare(split);
  EXPECT_EQ(texts(folder_ / "out/held_out.tokens"), held);
}

// Training on everything beside the held-out file of an earlier run would measure on trained text.
TEST_F(Prepare, AHeldOutFileOfAnEarlierRunIsAnError) {
  add("a.txt", "abcdefgh");
  auto split = options({folder_ / "in/a.txt"});
  split.held_out = 0.5;
  data::prepare(split);
  try {
    data::prepare(options({folder_ / "in/a.txt"}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("held_out.tokens: is of an earlier run"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(texts(folder_ / "out/train.tokens"), (Texts{"abcd"}));
  data::prepare(split);  // replaces both
  EXPECT_EQ(texts(folder_ / "out/held_out.tokens"), (Texts{"efgh"}));
}

// Nor may it lie beside a train.tokens of another run that was killed halfway.
TEST_F(Prepare, AHeldOutFileGoesBeforeAnotherTrainFileComes) {
  auto split = options({add("a.txt", "abcdefgh")});
  split.held_out = 0.5;
  data::prepare(split);
  split.held_out = 0.25;
  name_nothing_gets = "held_out.tokens";
  EXPECT_THROW(data::prepare(split), Error);
  name_nothing_gets = {};
  EXPECT_EQ(texts(folder_ / "out/train.tokens"), (Texts{"abcdef"}));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/held_out.tokens"));
}

// A process that was killed leaves what it had written; one that writes keeps it.
TEST_F(Prepare, RemovesWhatAKilledRunLeftOfAHeldOutFile) {
  const std::filesystem::path partial = folder_ / "out/held_out.tokens.partial";
  const auto whole = options({add("a.txt", "abcdefgh")});
  data::prepare(whole);
  test::write_file(partial, "left behind");
  {
    const int descriptor = ::open(partial.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(checkpoint::try_lock(descriptor), checkpoint::Lock::kHeld);
    data::prepare(whole);
    EXPECT_EQ(test::read_file(partial), "left behind");
    ::close(descriptor);
  }
  data::prepare(whole);
  EXPECT_FALSE(std::filesystem::exists(partial));
}

TEST_F(Prepare, HoldsOutTheEndOfASingleFileAtACharacter) {
  auto split = options({add("a.txt",
                            "abcd\xc3\xa9"
                            "fgh")});  // byte 5 is inside a character
  split.held_out = 0.4;
  EXPECT_EQ(prepared(split), (Texts{"abcd\xc3\xa9"}));
  EXPECT_EQ(texts(folder_ / "out/held_out.tokens"), (Texts{"fgh"}));
}

TEST_F(Prepare, HoldsOutLinesOfJsonlFiles) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "{\"text\": \"" + std::to_string(i) + "\"}\n";
  auto split = options({add("a.jsonl", lines)});
  split.held_out = 0.1;
  data::prepare(split);
  const auto held = static_cast<double>(texts(folder_ / "out/held_out.tokens").size());
  EXPECT_NEAR(held, 200, 60);  // 4.5 standard deviations
}

TEST_F(Prepare, HeldOutThatCannotBeIsAnError) {
  auto split = options({add("a.txt", "x")});
  split.held_out = 0.5;
  EXPECT_NE(error_of(split).find("holds out no document"), std::string::npos);
  split.inputs = {add("b.gz", gzip("text"))};
  EXPECT_NE(error_of(split).find("single packed file"), std::string::npos);
}

// The share is one of the text that is used.
TEST_F(Prepare, WhatIsNoTextIsNotHeldOut) {
  for (int i = 0; i < 10; ++i) {
    add(std::to_string(i) + ".txt", std::string(10'000, static_cast<char>('a' + i)));
  }
  add("empty.txt", "");
  add("latin1.txt", "caf\xe9");  // cut short, it would be UTF-8
  auto split = options({folder_ / "in"});
  split.held_out = 0.05;
  for (const size_t size : {3'000'000, 700'000}) {
    for (const std::string& other : {std::string(size, '\0'), std::string(size, '\xe9')}) {
      add("picture.png", other);
      add("packed.gz", gzip(other));
      data::prepare(split);
      EXPECT_EQ(texts(folder_ / "out/held_out.tokens").size(), 1U);
      EXPECT_EQ(texts(folder_ / "out/train.tokens").size(), 9U);
    }
  }
}

TEST_F(Prepare, FilesThatAreTooShortAreNotHeldOut) {
  for (int i = 0; i < 6; ++i) add(std::to_string(i) + ".txt", std::string(10'000, 'x'));
  add("__init__.py", "#\n");
  add("packed.gz", gzip(std::string(4095, 'y')));
  auto split = options({folder_ / "in"});
  split.held_out = 0.05;
  split.min_bytes = 4096;
  data::prepare(split);
  EXPECT_EQ(texts(folder_ / "out/held_out.tokens").size(), 1U);
  EXPECT_EQ(texts(folder_ / "out/train.tokens").size(), 5U);
  // What counts is the text, not its size on the disk.
  add("packed.gz", gzip(std::string(4096, 'y')));
  data::prepare(split);
  EXPECT_EQ(texts(folder_ / "out/held_out.tokens"), Texts{std::string(4096, 'y')});
}

TEST_F(Prepare, HoldsOutTheEndOfTheOnlyText) {
  const std::string text(8400, 'x');
  add("a.txt", text);
  add("b.jsonl", "{\"text\": \"line\"}\n");
  add("c.bin", std::string(4, '\0'));
  auto split = options({folder_ / "in"});
  split.held_out = 0.25;
  EXPECT_EQ(prepared(split).front(), text.substr(2100));
  EXPECT_EQ(texts(folder_ / "out/held_out.tokens").front(), text.substr(0, 2100));
  // Its beginning is trained on when the end is found to be no text.
  std::filesystem::remove_all(folder_ / "out");
  add("a.txt", std::string(4 << 20, 'x') + "\xff");
  EXPECT_SAYS(error_of(split), "a.txt: byte 4194304: is not UTF-8");
}

TEST_F(Prepare, SaysWhyNothingIsHeldOut) {
  auto split = options({add("a.txt", std::string(6000, 'x'))});
  split.held_out = 0.1;
  split.min_bytes = 4096;
  EXPECT_SAYS(error_of(split), "--held-out 0.1 holds out no document; give more text");
  EXPECT_SAYS(error_of(split), "; documents of less than 4096 bytes: 1, first a.txt");
}

TEST(ChooseHeldOut, TakesAtLeastOneAndNeverMoreThanTheShare) {
  EXPECT_TRUE(rc::check([] {
    std::vector<data::InputFile> files;
    const auto sizes =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<int64_t>>(rc::gen::inRange(0, 1000)));
    double total = 0;
    for (const int64_t size : sizes) {
      const std::string name = std::to_string(files.size()) + ".txt";
      files.push_back({name, name, size, true});
      total += static_cast<double>(size);
    }
    const double share = *rc::gen::element(0.01, 0.1, 0.5);
    const auto held = data::choose_held_out(files, share);
    RC_ASSERT(held.size() == files.size());
    int64_t count = 0;
    double taken = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      count += held[i];
      if (held[i]) taken += static_cast<double>(files[i].size);
    }
    RC_ASSERT(count >= (files.size() >= 2 ? 1 : 0));
    RC_ASSERT(files.size() < 2 || count < static_cast<int64_t>(files.size()));
    RC_ASSERT(count == 1 || taken <= share * total);
  }));
}

}  // namespace
}  // namespace reynard::test
