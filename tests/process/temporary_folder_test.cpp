#include "reynard/process/temporary_folder.h"

#include "reynard/tensor/error.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace reynard::process {
namespace {

namespace fs = std::filesystem;

TEST(TemporaryFolder, IsItsOwnersAloneAndGoesWithIt) {
  fs::path first;
  {
    const TemporaryFolder one, another;
    EXPECT_NE(one.path(), another.path());
    EXPECT_EQ(fs::status(one.path()).permissions() & (fs::perms::group_all | fs::perms::others_all),
              fs::perms::none);
    test::write_file(one.path() / "file", "text");
    first = one.path();
  }
  EXPECT_FALSE(fs::exists(first));
}

TEST(TemporaryFolder, APlaceThatDoesNotExistIsNamed) {
  const test::TempDir folder;
  const fs::path place = folder / "nowhere";
  EXPECT_EQ(test::error_of([&] { TemporaryFolder{place}; }),
            "cannot create a folder in " + place.string() +
                ": No such file or directory; set TMPDIR to another");
}

}  // namespace
}  // namespace reynard::process
