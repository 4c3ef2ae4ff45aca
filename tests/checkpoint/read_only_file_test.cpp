#include "reynard/checkpoint/read_only_file.h"

#include "reynard/tensor/error.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace reynard::checkpoint {
namespace {

TEST(ReadOnlyFile, CopiesAndMapsTheSameBytes) {
  const test::TempDir folder;
  test::write_file(folder / "f", "forgetting");
  const ReadOnlyFile file(folder / "f");
  EXPECT_EQ(file.size_bytes(), 10);
  std::string some(3, ' ');
  file.read(3, some.data(), some.size());
  EXPECT_EQ(some, "get");
  EXPECT_EQ(std::string_view(file.mapped(), 10), "forgetting");
  EXPECT_EQ(file.mapped(), file.mapped(/*read_ahead=*/true));
  file.let_go(0, 10);
  EXPECT_EQ(std::string_view(file.mapped(), 10), "forgetting");
}

TEST(ReadOnlyFile, SaysWhatIsWrongAndTheHint) {
  const test::TempDir folder;
  const auto opened = [&](const std::string& name) {
    return test::error_of([&] { ReadOnlyFile(folder / name, "make one"); });
  };
  EXPECT_EQ(opened("none"),
            (folder / "none").string() + ": cannot be opened: No such file or directory; make one");
  EXPECT_EQ(opened(""), (folder / "").string() + ": is not a file; make one");
  EXPECT_EQ(test::error_of([&] { ReadOnlyFile("/dev/null"); }), "/dev/null: is not a file");
}

TEST(ReadOnlyFile, BecomingShorterIsAnError) {
  const test::TempDir folder;
  test::write_file(folder / "f", "forgetting");
  const ReadOnlyFile file(folder / "f");
  std::filesystem::resize_file(folder / "f", 4);
  std::string all(10, ' ');
  EXPECT_EQ(test::error_of([&] { file.read(0, all.data(), all.size()); }),
            (folder / "f").string() + ": became shorter while it was read");
}

}  // namespace
}  // namespace reynard::checkpoint
