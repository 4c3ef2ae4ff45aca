#include "reynard/data/input_files.h"

#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace reynard::data {
namespace {

namespace fs = std::filesystem;

TEST(FindInputFiles, OneFileIsGivenOnce) {
  const test::TempDir folder;
  fs::create_directories(folder / "in");
  test::write_file(folder / "in/a.txt", "text");
  test::write_file(folder / "in/b.txt", "text");
  fs::create_symlink("in", folder / "link");
  const std::string a = (folder / "in/a.txt").string(), b = (folder / "in/b.txt").string();
  EXPECT_EQ(find_input_files({a, b}, {}).files.size(), 2U) << "equal texts are two files";
  const auto error = [](const std::vector<fs::path>& inputs) {
    return test::error_of([&] { find_input_files(inputs, {}); });
  };
  EXPECT_EQ(error({a, b, a}), a + ": is given twice; give it once");
  const std::string linked = (folder / "link/a.txt").string();
  EXPECT_SAYS(error({folder / "in", linked}), a + " and " + linked + " are one file; give it once");
  fs::create_symlink("a.txt", folder / "in/c.txt");
  const std::string c = (folder / "in/c.txt").string();
  EXPECT_EQ(error({a, c}), a + " and " + c + " are one file; give it once");
  fs::create_hard_link(folder / "in/a.txt", folder / "d.txt");
  const std::string d = (folder / "d.txt").string();
  EXPECT_EQ(error({a, d}), a + " and " + d + " are one file; give it once");
}

// As those of Python's library do.
TEST(FindInputFiles, AFolderMayHoldLinksToItsFiles) {
  const test::TempDir folder;
  fs::create_directories(folder / "in");
  test::write_file(folder / "in/b.txt", "text");
  fs::create_symlink("b.txt", folder / "in/a.txt");
  const InputFiles found = find_input_files({folder / "in"}, {});
  ASSERT_EQ(found.files.size(), 1U);
  EXPECT_EQ(found.files[0].name, "a.txt");
  EXPECT_EQ(found.again, std::vector<fs::path>{folder / "in/b.txt"});
  fs::create_hard_link(folder / "in/b.txt", folder / "in/c.txt");
  EXPECT_EQ(find_input_files({folder / "in"}, {}).again.size(), 2U);
  fs::remove(folder / "in/c.txt");
  EXPECT_EQ(find_input_files({folder / "in", folder / "in"}, {}).again.size(), 3U);
}

}  // namespace
}  // namespace reynard::data
