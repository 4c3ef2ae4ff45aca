#include "reynard/evaluation/sample_log.h"

#include "reynard/tensor/error.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {
namespace {

using nlohmann::json;

json header_of(const std::string& task) {
  return {{"task", task}, {"settings", json::object()}, {"identity", json::object()}};
}

const json kHeader = header_of("t");

std::string line_of(const std::string& id) {
  return json{{"id", id}}.dump() + "\n";
}

TEST(SampleLog, GoesOnBehindTheLastWholeLine) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  test::write_file(path, kHeader.dump() + "\n" + line_of("a") + line_of("b") + "{\"id\": \"c");
  SampleLog log(path, kHeader, SampleLog::Others::kReplace);
  EXPECT_TRUE(log.contains("a"));
  EXPECT_TRUE(log.contains("b"));
  EXPECT_EQ(log.size(), 2);
  log.append({{"id", "c"}});
  log.flush();
  EXPECT_EQ(test::read_file(path),
            kHeader.dump() + "\n" + line_of("a") + line_of("b") + line_of("c"));
}

// A sample that is there twice would count twice, and a damaged line is none; the lines behind them
// are as good as any.
TEST(SampleLog, LeavesOutLinesThatAreDamagedOrThereTwice) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  test::write_file(path,
                   kHeader.dump() + "\n" + line_of("a") + "{\"id\": \"b\n" + line_of("c") +
                       line_of("a") + "{\"id\": 4}\n\n" + line_of("d") + "{\"id\"");
  {
    SampleLog log(path, kHeader, SampleLog::Others::kKeep);
    EXPECT_EQ(log.num_dropped(), 4);
    EXPECT_EQ(log.size(), 3);
    EXPECT_FALSE(log.contains("b"));
    EXPECT_EQ(test::read_file(path),
              kHeader.dump() + "\n" + line_of("a") + line_of("c") + line_of("d"));
    log.append({{"id", "b"}});
    log.flush();
    EXPECT_SAYS(test::error_of([&] { SampleLog(path, kHeader, SampleLog::Others::kKeep); }),
                "another process is writing it");
  }
  EXPECT_EQ(test::read_file(path),
            kHeader.dump() + "\n" + line_of("a") + line_of("c") + line_of("d") + line_of("b"));
  EXPECT_EQ(SampleLog(path, kHeader, SampleLog::Others::kKeep).num_dropped(), 0);
}

// Nor may one count that nobody asks for.
TEST(SampleLog, KeepsOnlyWhatIsAskedFor) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  const std::string lines = kHeader.dump() + "\n" + line_of("a") + line_of("zzz") + line_of("c");
  test::write_file(path, lines);
  SampleLog log(path, kHeader, SampleLog::Others::kReplace);
  log.keep_only({"a", "b", "c", "zzz"});
  EXPECT_EQ(test::read_file(path), lines);
  log.keep_only({"a", "b", "c"});
  EXPECT_EQ(log.size(), 2);
  log.append({{"id", "b"}});
  log.flush();
  EXPECT_EQ(test::read_file(path),
            kHeader.dump() + "\n" + line_of("a") + line_of("c") + line_of("b"));
}

// What was cut short by a crash begins as this header does; all else is somebody's.
TEST(SampleLog, LeavesFilesThatAreNoLogsAsTheyAre) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  const std::string header = kHeader.dump() + "\n";
  for (const std::string& text : {std::string(R"({"text": "a dictionary"})") + "\n",
                                  header.substr(1) + line_of("a"),  // a damaged header
                                  "\n" + header,
                                  json{{"task", "t"}}.dump() + "\n" + line_of("a"),
                                  std::string("notes"),
                                  "[1]" + std::string("\n")}) {
    test::write_file(path, text);
    for (const auto others : {SampleLog::Others::kReplace, SampleLog::Others::kKeep}) {
      EXPECT_SAYS(test::error_of([&] { SampleLog(path, kHeader, others); }),
                  "t.jsonl exists and is not a sample log; remove it or give another folder");
      EXPECT_EQ(test::read_file(path), text);
    }
  }
  for (const size_t length : {size_t{0}, size_t{1}, header.size() - 1}) {
    test::write_file(path, header.substr(0, length));
    EXPECT_EQ(SampleLog(path, kHeader, SampleLog::Others::kKeep).size(), 0);
    EXPECT_EQ(test::read_file(path), header);
  }
}

TEST(SampleLog, BeginsAnewUnderAnotherHeader) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  const std::string before = header_of("other").dump() + "\n" + line_of("a");
  test::write_file(path, before);
  EXPECT_THROW(SampleLog(path, kHeader, SampleLog::Others::kKeep), Error);
  EXPECT_EQ(test::read_file(path), before);
  for (const bool measures : {false, true}) {
    SampleLog log(path, kHeader, SampleLog::Others::kReplace);
    EXPECT_EQ(log.size(), 0);
    EXPECT_TRUE(log.replaces());
    log.flush();
    if (measures) log.append({{"id", "b"}});
    EXPECT_EQ(test::read_file(path), before) << "nothing new is there yet";
    if (!measures) continue;  // it failed, or was stopped
    log.flush();
    EXPECT_EQ(test::read_file(path), kHeader.dump() + "\n" + line_of("b"));
    EXPECT_FALSE(log.replaces());
    EXPECT_SAYS(test::error_of([&] { SampleLog(path, kHeader, SampleLog::Others::kReplace); }),
                "another process is writing it");
    log.append({{"id", "c"}});
    log.flush();
  }
  EXPECT_EQ(test::read_file(path), kHeader.dump() + "\n" + line_of("b") + line_of("c"));
  EXPECT_EQ(SampleLog(path, kHeader, SampleLog::Others::kKeep).size(), 2);
}

// A name of a file need not be UTF-8.
TEST(SampleLog, HeadersOfAnyBytesAreFoundAgain) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  json header = kHeader;
  header["identity"] = {{"adapter", "/tmp/ad\xff.sh"}};
  {
    SampleLog log(path, header, SampleLog::Others::kReplace);
    log.append({{"id", "a"}});
    log.flush();
  }
  EXPECT_TRUE(SampleLog(path, header, SampleLog::Others::kKeep).contains("a"));
}

TEST(SampleLog, AFieldThatIsMissingIsNamedWithItsLine) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  test::write_file(path, kHeader.dump() + "\n" + R"({"id": "a", "loss": 1})" + "\n" + line_of("b"));
  const Samples samples = SampleLog(path, kHeader, SampleLog::Others::kReplace).samples();
  const std::string error = test::error_of(
      [&] { samples.for_each([](const json& line) { line.at("loss").get<double>(); }); });
  EXPECT_SAYS(error, "t.jsonl:3: key 'loss' not found; delete this line");
}

TEST(SampleLog, IsWrittenByOneAtATime) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "t.jsonl";
  {
    const SampleLog log(path, kHeader, SampleLog::Others::kReplace);
    try {
      const SampleLog other(path, kHeader, SampleLog::Others::kReplace);
      FAIL() << "opened twice";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("another process is writing it"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(SampleLog(path, kHeader, SampleLog::Others::kReplace).size(), 0);
}

}  // namespace
}  // namespace reynard::evaluation
