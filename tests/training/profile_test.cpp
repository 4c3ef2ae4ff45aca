#include "reynard/training/profile.h"

#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <iterator>

namespace reynard::training {
namespace {

TEST(StepProfile, IsAWholeTraceOrNothing) {
  const test::TempDir folder;
  const auto write = [](const std::filesystem::path& path) {
    StepProfile profile(at::kCPU);
    at::ones({3}).add_(1);
    profile.write(path);
  };
  write(folder / "profile.json");
  EXPECT_TRUE(
      nlohmann::json::parse(test::read_file(folder / "profile.json"))["traceEvents"].is_array());
  std::filesystem::create_directories(folder / "taken.json/full");
  EXPECT_SAYS(test::error_of([&] { write(folder / "taken.json"); }), "taken.json: ");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

}  // namespace
}  // namespace reynard::training
