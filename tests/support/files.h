#pragma once
// Where tests find files: the reference folder beside the checkout, and temporary folders.

#include "reynard/process/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace reynard::test {

// The folder with goldens and data: $REYNARD_SHARED, else ../shared beside the checkout; empty when
// absent.
std::filesystem::path shared_folder();

// A folder that is removed with the object.
class TempDir {
 public:
  TempDir();
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(std::string_view name) const { return path() / name; }

 private:
  process::TemporaryFolder folder_;
};

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace reynard::test

// Skips the test, saying why, when the reference folder is absent.
#define REYNARD_NEED_SHARED()                                                   \
  if (::reynard::test::shared_folder().empty()) {                               \
    GTEST_SKIP() << "no folder with goldens and data: REYNARD_SHARED names it"; \
  }
