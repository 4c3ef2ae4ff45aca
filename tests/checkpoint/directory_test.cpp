#include "reynard/checkpoint/directory.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <ATen/ops/randn.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

namespace {
int num_entries_listed = -1;  // until listing a folder fails; -1: it does not
}

// In the place of libc's.
extern "C" dirent* readdir(DIR* folder) {
  static auto* const real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  if (num_entries_listed == 0) {
    errno = EIO;
    return nullptr;
  }
  if (num_entries_listed > 0) --num_entries_listed;
  return real(folder);
}

namespace reynard::checkpoint {
namespace {

namespace fs = std::filesystem;

void write_folder(const fs::path& target, const at::Tensor& weight) {
  FolderWriter writer(target);
  writer.write("config.json", "{}");
  writer.write_tensors("model.safetensors", std::vector<NamedTensor>{{"w", weight}});
  writer.commit();
}

std::string verify_problem(const fs::path& folder) {
  try {
    verify_folder(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(AtomicFile, AFullDiskIsSaidWithWhatHelps) {
  const test::TempDir folder;
  const std::string full = checkpoint::write_error_text(folder / "file", ENOSPC);
  EXPECT_SAYS(full, "No space left on device (");
  EXPECT_SAYS(full, " MB free there); free some space or choose another folder");
  EXPECT_EQ(checkpoint::write_error_text("file", EACCES), "Permission denied");
}

TEST(FolderWriter, AppearsWholeAndVerifies) {
  const test::TempDir parent;
  const at::Tensor weight = at::randn({16});
  {
    FolderWriter writer(parent / "model");
    writer.write("config.json", "{}");
    EXPECT_FALSE(fs::exists(parent / "model"));
  }  // never committed
  EXPECT_TRUE(fs::is_empty(parent.path()));

  write_folder(parent / "model", weight);
  EXPECT_TRUE(has_checksums(parent / "model"));
  EXPECT_EQ(verify_problem(parent / "model"), "");
  EXPECT_BITWISE_EQUAL(TensorFolder(parent / "model").read("w"), weight);
}

TEST(FolderWriter, ReplacesTheOldFolder) {
  const test::TempDir parent;
  write_folder(parent / "model", at::randn({4}));
  test::write_file(parent / "model" / "stale", "x");
  const at::Tensor weight = at::randn({8});
  write_folder(fs::path(parent / "model").string() + "/", weight);
  EXPECT_BITWISE_EQUAL(TensorFolder(parent / "model").read("w"), weight);
  EXPECT_FALSE(fs::exists(parent / "model" / "stale"));
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);
}

TEST(FolderWriter, FullDiskLeavesTheOldFolder) {
  const test::TempDir parent;
  const at::Tensor weight = at::randn({4});
  write_folder(parent / "model", weight);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_folder(parent / "model", at::randn({4096})), Error);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(verify_problem(parent / "model"), "");
  EXPECT_BITWISE_EQUAL(TensorFolder(parent / "model").read("w"), weight);
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);
}

TEST(FolderWriter, TwoOfOnePathShareNothing) {
  const test::TempDir parent;
  FolderWriter one(parent / "model");
  one.write("which", "one");
  FolderWriter two(parent / "model");
  two.write("which", "two");
  one.commit();
  EXPECT_EQ(test::read_file(parent / "model/which"), "one");
  two.commit();
  EXPECT_EQ(test::read_file(parent / "model/which"), "two");
  EXPECT_EQ(verify_problem(parent / "model"), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);
}

// A process of the same number may write there, in another container.
TEST(FolderWriter, WritesToNoFolderThatIsThere) {
  const test::TempDir parent;
  std::vector<fs::path> theirs = {parent / fmt::format(".tmp-model-new-{}", ::getpid())};
  for (int i = 0; i < 300; ++i) {
    theirs.push_back(parent / fmt::format(".tmp-model-{}.{}", ::getpid(), i));
  }
  std::deque<FolderLock> locks;  // it lives
  for (const fs::path& folder : theirs) {
    fs::create_directory(folder);
    locks.emplace_back(folder);
    test::write_file(folder / "theirs", "x");
  }
  write_folder(parent / "model", at::randn({4}));
  EXPECT_EQ(verify_problem(parent / "model"), "");
  for (const fs::path& folder : theirs) {
    EXPECT_TRUE(fs::exists(folder / "theirs")) << folder;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << folder;
  }
}

TEST(VerifyFolder, NamesTheFileThatDiffers) {
  const test::TempDir parent;
  const auto folder = parent / "model";
  const auto weights = folder / "model.safetensors";
  write_folder(folder, at::randn({16}));
  const std::string good = test::read_file(weights);
  std::string bad = good;
  bad.back() ^= 1;
  test::write_file(weights, bad);
  EXPECT_NE(verify_problem(folder).find("model.safetensors: content differs"), std::string::npos);
  test::write_file(weights, good.substr(1));
  EXPECT_NE(verify_problem(folder).find(
                fmt::format("has {} bytes; {} were written", good.size() - 1, good.size())),
            std::string::npos)
      << verify_problem(folder);
  fs::remove(weights);
  EXPECT_NE(verify_problem(folder).find("is missing"), std::string::npos);
  for (const char* text : {"", "[]", "{\"files\":{\"a\":3}}", "{\"files\":{\"../a\":{}}}"}) {
    test::write_file(folder / kChecksums, text);
    EXPECT_NE(verify_problem(folder), "") << text;
  }
  fs::remove(folder / kChecksums);
  EXPECT_NE(verify_problem(folder).find("cannot be read"), std::string::npos);
}

// A run does not go on from a checkpoint without checksums: there removing them is no way out.
TEST(VerifyFolder, TheRemedyFitsTheFolder) {
  const test::TempDir parent;
  for (const bool is_checkpoint : {false, true}) {
    const auto folder = parent / (is_checkpoint ? "step-1" : "model");
    FolderWriter writer(folder);
    writer.write("config.json", "{}");
    if (is_checkpoint) writer.write("trainer.json", "{}");
    writer.commit();
    const std::string remedy = is_checkpoint
                                   ? "copy it again from where it is whole, or use the checkpoint "
                                     "before"
                                   : "fetch it again, or if that is on purpose, remove";
    for (const char* text : {"[]", "{ }"}) {
      test::write_file(folder / "config.json", text);
      EXPECT_SAYS(verify_problem(folder), remedy);
    }
    fs::remove(folder / "config.json");
    EXPECT_SAYS(verify_problem(folder), remedy);
    EXPECT_EQ(verify_problem(folder).find("remove") == std::string::npos, is_checkpoint);
  }
}

TEST(RemoveUnfinished, TakesOnlyTemporaryNames) {
  const test::TempDir parent;
  write_folder(parent / "step-1", at::randn({4}));
  fs::create_directories(parent / ".tmp-step-2-new-77");
  test::write_file(parent / ".tmp-metrics-3", "x");
  remove_unfinished(parent.path());
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);
  EXPECT_EQ(verify_problem(parent / "step-1"), "");
  remove_unfinished(parent / "nowhere");  // nothing to do
}

// Two runs of `reynard prepare` write into one folder.
TEST(RemoveUnfinished, LeavesWhatIsBeingWritten) {
  const test::TempDir parent;
  const auto folder = parent / "model";
  FolderWriter writer(folder);
  writer.write("config.json", "{}");
  remove_unfinished(parent.path());
  writer.commit();
  EXPECT_EQ(verify_problem(folder), "");
  const FolderLock free(folder);  // once it has its name nobody keeps it
}

// As where another process removes the folder, or its entries, at the same time.
TEST(RemoveUnfinished, AListingThatFailsIsNoError) {
  const test::TempDir parent;
  for (const char* name : {".tmp-a-7", ".tmp-b-7", ".tmp-c-7"})
    test::write_file(parent / name, "x");
  for (int entries = 0; entries < 6; ++entries) {  // "." and ".." among them
    num_entries_listed = entries;
    EXPECT_NO_THROW(remove_unfinished(parent.path())) << entries;
    num_entries_listed = -1;
  }
}

// Not those of other files, nor one that is being written.
TEST(RemoveLeftovers, TakesWhatKilledWritersLeft) {
  const test::TempDir parent;
  for (const char* name : {".tmp-f-7", ".tmp-f-7.0", ".tmp-f-x7", ".tmp-g-7.0", ".tmp-f.old-7"}) {
    test::write_file(parent / name, "x");
  }
  fs::create_directories(parent / ".tmp-f-8");
  AtomicFile writing(parent / "f");
  remove_leftovers(parent / "f");
  EXPECT_FALSE(fs::exists(parent / ".tmp-f-7"));
  EXPECT_FALSE(fs::exists(parent / ".tmp-f-7.0"));
  EXPECT_FALSE(fs::exists(parent / ".tmp-f-8")) << "of a folder";
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 4);
  writing.write("new", 3);
  writing.commit();
  EXPECT_EQ(test::read_file(parent / "f"), "new");
  remove_leftovers(parent / "nowhere/f");  // nothing to do
}

// Whoever is killed each time would fill the disk.
TEST(RemoveLeftovers, WritersTakeThoseOfTheirName) {
  const test::TempDir parent;
  test::write_file(parent / ".tmp-f-7.0", "x");
  write_atomically(parent / "f", "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);

  fs::create_directories(parent / ".tmp-model-7.0");
  test::write_file(parent / ".tmp-model-7.0/model.safetensors", "x");
  fs::create_directories(parent / ".tmp-models-7.0");  // of another name
  FolderWriter other(parent / "model");
  EXPECT_FALSE(fs::exists(parent / ".tmp-model-7.0"));
  write_folder(parent / "model", at::randn({4}));
  EXPECT_TRUE(fs::exists(parent / ".tmp-models-7.0"));
  other.write("config.json", "{}");
  other.commit();
  EXPECT_EQ(verify_problem(parent / "model"), "");
}

// A name that others can guess must not lead to a file of theirs.
TEST(AtomicFile, WritesToNoFileThatIsThere) {
  const test::TempDir parent;
  test::write_file(parent / "other", "theirs");
  for (int i = 0; i < 300; ++i) {
    for (const char* form : {".tmp-f-{}", ".tmp-f-{}.{}"}) {
      std::error_code is_there;
      fs::create_symlink(
          parent / "other", parent / fmt::format(fmt::runtime(form), ::getpid(), i), is_there);
    }
  }
  write_atomically(parent / "f", "ours");
  EXPECT_EQ(test::read_file(parent / "other"), "theirs");
  EXPECT_EQ(test::read_file(parent / "f"), "ours");
}

TEST(AtomicFile, TwoOfOnePathShareNothing) {
  const test::TempDir parent;
  AtomicFile one(parent / "f");
  AtomicFile two(parent / "f");
  one.write("one", 3);
  two.write("number two", 10);
  one.commit();
  EXPECT_EQ(test::read_file(parent / "f"), "one");
  two.commit();
  EXPECT_EQ(test::read_file(parent / "f"), "number two");
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);
}

TEST(CommitFile, LeavesNothingWhereItFails) {
  const test::TempDir folder;
  fs::create_directories(folder / "taken/by a folder");
  test::write_file(folder / "made", "a trace");
  EXPECT_SAYS(test::error_of([&] { commit_file(folder / "made", folder / "taken"); }),
              "taken: cannot be written: ");
  EXPECT_FALSE(fs::exists(folder / "made"));
}

TEST(AtomicFile, ReplacesFilesOnly) {
  const test::TempDir parent;
  const fs::path pipe = parent / "pipe";  // stands for /dev/null, which root could replace
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(write_atomically(pipe, "text"), Error);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_THROW(write_atomically(parent.path(), "text"), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);
}

TEST(AtomicFile, AppearsOnCommitOnly) {
  const test::TempDir folder;
  write_atomically(folder / "f", "old");
  {
    AtomicFile file(folder / "f", 100);
    file.write("new", 3);
  }
  EXPECT_EQ(test::read_file(folder / "f"), "old");
  AtomicFile file(folder / "f", 100);  // reserves more than it writes
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(test::read_file(folder / "f"), "new");
  EXPECT_EQ(file.sha256(), sha256_hex("new"));
  EXPECT_THROW(write_atomically(folder / "no" / "f", "x"), Error);
}

}  // namespace
}  // namespace reynard::checkpoint
