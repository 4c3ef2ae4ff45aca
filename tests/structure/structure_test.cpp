// The tree is the architecture: which folder may include which is data here, and any other edge
// fails.

#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace reynard::test {
namespace {

namespace fs = std::filesystem;

// tensor and config are open to all; a folder may always include itself.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"tensor", {}},
    {"config", {}},
    {"process", {}},
    {"attention", {}},
    {"ops", {}},
    {"knn", {"checkpoint"}},
    {"tokenizer", {}},
    {"checkpoint", {}},
    {"statistics", {}},
    {"report", {"checkpoint", "statistics"}},
    {"protocol", {}},
    {"jinja", {}},
    {"http", {"protocol"}},
    {"data", {"tokenizer", "checkpoint"}},
    {"models", {"attention", "ops", "knn", "checkpoint"}},
    {"generation", {"models", "tokenizer", "attention", "jinja"}},
    {"training", {"models", "data", "checkpoint", "ops", "process"}},
    {"evaluation",
     {"generation",
      "models",
      "data",
      "tokenizer",
      "attention",
      "checkpoint",
      "process",
      "statistics"}},
    {"serving", {"generation", "models", "tokenizer", "protocol", "attention", "http"}},
};
const std::set<std::string> kOpenToAll = {"tensor", "config"};
const std::set<std::string> kForbiddenFolders = {
    "utils", "util", "common", "core", "base", "helpers", "misc"};
const std::set<std::string> kForbiddenHeaders = {
    "torch/torch.h", "torch/extension.h", "ATen/ATen.h"};

const fs::path kRoot = REYNARD_SOURCE_DIR;

bool is_source(const fs::path& path) {
  static const std::set<std::string> endings = {".h", ".inl", ".cpp", ".cu", ".cuh"};
  return endings.count(path.extension().string()) > 0;
}

std::vector<fs::path> sources_of(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!fs::exists(folder)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && is_source(entry.path())) found.push_back(entry.path());
  }
  return found;
}

std::vector<std::string> includes_of(const fs::path& path) {
  static const std::regex include(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  std::vector<std::string> found;
  std::istringstream lines(read_file(path));
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, include)) found.push_back(match[1]);
  }
  return found;
}

// "reynard/attention/cpu/x.h" -> "attention"; empty for anything outside reynard/.
std::string component_of(const std::string& include) {
  if (include.rfind("reynard/", 0) != 0) return "";
  const size_t begin = std::string("reynard/").size();
  return include.substr(begin, include.find('/', begin) - begin);
}

TEST(Structure, EveryFolderHasItsIncludeLevel) {
  for (const auto& entry : fs::directory_iterator(kRoot / "reynard")) {
    if (!entry.is_directory()) continue;
    EXPECT_TRUE(kMayInclude.count(entry.path().filename()))
        << entry.path().filename() << " is not in the table of include levels";
  }
}

TEST(Structure, FoldersIncludeOnlyWhatTheirLevelAllows) {
  for (const auto& [component, allowed] : kMayInclude) {
    for (const fs::path& path : sources_of(kRoot / "reynard" / component)) {
      for (const std::string& include : includes_of(path)) {
        const std::string target = component_of(include);
        EXPECT_TRUE(target.empty() || target == component || allowed.count(target) ||
                    kOpenToAll.count(target))
            << fs::relative(path, kRoot) << " includes " << include;
        for (const char* above : {"cli/", "bench/", "tests/"}) {
          EXPECT_NE(include.rfind(above, 0), 0U)
              << fs::relative(path, kRoot) << " includes " << include;
        }
      }
    }
  }
}

TEST(Structure, TensorAndConfigStandOnNothingOfTheProject) {
  for (const std::string component : {"tensor", "config"}) {
    for (const fs::path& path : sources_of(kRoot / "reynard" / component)) {
      for (const std::string& include : includes_of(path)) {
        const std::string target = component_of(include);
        EXPECT_TRUE(target.empty() || target == component || target == "tensor")
            << fs::relative(path, kRoot) << " includes " << include;
      }
    }
  }
}

TEST(Structure, NobodyIncludesAllOfTorch) {
  for (const char* folder : {"reynard", "cli", "bench", "tests"}) {
    for (const fs::path& path : sources_of(kRoot / folder)) {
      for (const std::string& include : includes_of(path)) {
        EXPECT_EQ(kForbiddenHeaders.count(include), 0U)
            << fs::relative(path, kRoot) << " includes " << include;
      }
    }
  }
}

// Each header of an operator costs every build that reads it.
TEST(Structure, OperatorsThatAreIncludedAreUsed) {
  static const std::regex operator_header(R"(^ATen/ops/(\w+)\.h$)");
  for (const char* folder : {"reynard", "cli", "bench", "tests", "python"}) {
    for (const fs::path& path : sources_of(kRoot / folder)) {
      const std::string text = read_file(path);
      std::smatch match;
      for (const std::string& include : includes_of(path)) {
        if (!std::regex_match(include, match, operator_header)) continue;
        const std::regex use("\\b" + match[1].str() + "(_|_out)?\\b(?!\\.h>)");
        EXPECT_TRUE(std::regex_search(text, use))
            << fs::relative(path, kRoot) << " includes " << include << " and does not use it";
      }
    }
  }
}

// What a file includes of the project, and what that includes, and so on: itself and the includes
// of all of them.
struct Included {
  std::set<fs::path> files;
  std::set<std::string> headers;

  void add(const fs::path& path) {
    if (!files.insert(path).second) return;
    for (const std::string& include : includes_of(path)) {
      headers.insert(include);
      if (fs::exists(kRoot / include)) add(kRoot / include);
    }
  }
};

// Files compiled for one instruction set, or for a GPU, hold kernels: an inline function of torch
// compiled there could be the copy that the linker keeps for everybody.
TEST(Structure, KernelsIncludeNoTorch) {
  static const std::regex kernels(
      R"((amx|avx2|avx512|avx512_bf16|avx512_vnni|portable)\.cpp$|\.cu$)");
  int64_t num_files = 0;
  for (const fs::path& path : sources_of(kRoot / "reynard")) {
    if (!std::regex_search(path.filename().string(), kernels)) continue;
    ++num_files;
    Included included;
    included.add(path);
    for (const std::string& header : included.headers) {
      EXPECT_FALSE(header.starts_with("ATen") || header.starts_with("torch") ||
                   header.starts_with("c10"))
          << fs::relative(path, kRoot) << " comes to include " << header;
    }
  }
  EXPECT_GT(num_files, 20);
}

TEST(Structure, NoFolderWithoutAName) {
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "reynard")) {
    if (!entry.is_directory()) continue;
    EXPECT_EQ(kForbiddenFolders.count(entry.path().filename()), 0U) << entry.path();
  }
}

TEST(Structure, HeadersArePragmaOnceAndSourcesIncludeTheirOwnHeaderFirst) {
  for (const char* folder : {"reynard", "cli", "bench"}) {
    for (const fs::path& path : sources_of(kRoot / folder)) {
      if (path.extension() == ".h") {
        EXPECT_EQ(read_file(path).rfind("#pragma once", 0), 0U) << fs::relative(path, kRoot);
        continue;
      }
      const fs::path own = fs::path(path).replace_extension(".h");
      if (!fs::exists(own)) continue;
      const std::vector<std::string> includes = includes_of(path);
      ASSERT_FALSE(includes.empty()) << fs::relative(path, kRoot);
      EXPECT_EQ(includes[0], fs::relative(own, kRoot).string()) << fs::relative(path, kRoot);
    }
  }
}

TEST(Structure, TestsMirrorTheTree) {
  static const std::set<std::string> own = {"support", "structure", "cli", "quickstart", "bench"};
  for (const auto& entry : fs::directory_iterator(kRoot / "tests")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    EXPECT_TRUE(own.count(name) || fs::exists(kRoot / "reynard" / name)) << "tests/" << name;
  }
}

}  // namespace
}  // namespace reynard::test
