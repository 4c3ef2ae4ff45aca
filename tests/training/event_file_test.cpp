#include "reynard/training/event_file.h"

#include "reynard/training/metrics.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace reynard::training {

namespace {

std::filesystem::path only_file(const std::filesystem::path& folder) {
  return std::filesystem::directory_iterator(folder)->path();
}

}  // namespace

TEST(EventFile, ChecksumIsCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);  // the check value of the CRC catalogue
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(EventFile, RecordsAreFramedByLengthAndChecksums) {
  const test::TempDir folder;
  EventFile(folder.path(), 1).write(7, {{"train/loss", 2.5}});
  const std::string bytes = test::read_file(only_file(folder.path()));
  size_t at = 0;
  int records = 0;
  for (; at < bytes.size(); ++records) {
    uint64_t length = 0;
    ASSERT_LE(at + 16, bytes.size());
    std::memcpy(&length, bytes.data() + at, sizeof length);
    ASSERT_LE(at + 16 + length, bytes.size());
    at += 16 + length;
  }
  EXPECT_EQ(at, bytes.size());
  EXPECT_EQ(records, 3);  // the version, where the run begins, and one event
  EXPECT_NE(bytes.find("brain.Event:2"), std::string::npos);
  EXPECT_NE(bytes.find("train/loss"), std::string::npos);
}

// Also where a run begins anew in a folder of files of before.
TEST(MetricsLog, ReadersForgetWhatFollowsItsStep) {
  constexpr const char* kStart = "\x3a\x02\x08\x01";  // session_log { status = START }
  for (const char step : {0, 5}) {
    const test::TempDir folder;
    const MetricsLog log(folder.path(), step);
    const std::string bytes = test::read_file(only_file(folder.path()));
    const std::string first = {'\x10', static_cast<char>(step + 1)};  // step
    EXPECT_NE(bytes.find(first + kStart), std::string::npos) << static_cast<int>(step);
  }
}

TEST(MetricsLog, EveryNumberButTheStepIsACurve) {
  const test::TempDir folder;
  MetricsLog log(folder.path(), 0);
  const auto events = only_file(folder.path());
  log.write({{"step", 7}, {"loss", 1.5}, {"note", "text"}});
  const std::string bytes = test::read_file(events);
  EXPECT_NE(bytes.find("train/loss"), std::string::npos);
  EXPECT_EQ(bytes.find("train/step"), std::string::npos);
  EXPECT_EQ(bytes.find("train/note"), std::string::npos);
}

TEST(EventFile, TensorboardReadsWhatWasWritten) {
  const std::string python = REYNARD_TEST_PYTHON;
  const std::string quiet = " 2>/dev/null";
  const std::string import = python + " -c 'import tensorboard'" + quiet;
  if (std::system(import.c_str()) != 0) {
    GTEST_SKIP() << "PyPI tensorboard is not installed in " << python
                 << " (scripts/requirements-test.txt)";
  }
  const test::TempDir folder;
  EventFile events(folder.path(), 1);
  events.write(10, {{"train/loss", 2.5}, {"train/lr", 1e-3}});
  events.write(20, {{"train/loss", 1.5}});
  test::write_file(folder / "read.py",
                   "import sys\n"
                   "from tensorboard.backend.event_processing.event_accumulator import "
                   "EventAccumulator\n"
                   "a = EventAccumulator(sys.argv[1]); a.Reload()\n"
                   "got = [(e.step, e.value) for e in a.Scalars('train/loss')]\n"
                   "assert got == [(10, 2.5), (20, 1.5)], got\n"
                   "assert abs(a.Scalars('train/lr')[0].value - 1e-3) < 1e-9\n");
  std::filesystem::path events_file;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().starts_with("events.")) events_file = entry.path();
  }
  const std::string command =
      python + " " + (folder / "read.py").string() + " " + events_file.string() + quiet;
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace reynard::training
