#include "reynard/training/machine.h"

#include "reynard/process/child_process.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace reynard::training {
namespace {

TEST(GitRevision, IsThatOfACheckoutInAnyFolder) {
  const test::TempDir parent;
  const auto folder = parent / "it's; a \"checkout\"";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(git_revision(parent / "nowhere"), "unknown");
  const auto git = [&](std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x@localhost"});
    process::ChildProcess program({.arguments = words, .output_file = parent / "log"});
    return program.wait().exit_code;
  };
  ASSERT_EQ(git({"init"}), 0);
  ASSERT_EQ(git({"commit", "--allow-empty", "--message", "begin"}), 0);
  const std::string revision = git_revision(folder);
  EXPECT_EQ(revision.size(), 12U) << revision;
  EXPECT_EQ(revision.find_first_not_of("0123456789abcdef"), std::string::npos) << revision;
}

}  // namespace
}  // namespace reynard::training
