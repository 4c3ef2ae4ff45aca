#include "reynard/process/child_process.h"

#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace reynard::process {
namespace {

using Outcome = LineSocket::Outcome;

const double kNever = std::numeric_limits<double>::infinity();

std::vector<std::string> shell(const std::string& command) {
  return {"/bin/sh", "-c", command};
}

TEST(ChildProcess, LinesGoToAProgramAndComeBack) {
  ChildProcess program({.arguments = {"cat"}, .converse = true});
  for (const std::string& line : {std::string("one"), std::string(), std::string(70'000, 'x')}) {
    EXPECT_EQ(program.lines().send(line, deadline_in(kNever)), Outcome::kDone);
    const auto [outcome, answer] = program.lines().receive(deadline_in(kNever));
    EXPECT_EQ(outcome, Outcome::kDone);
    EXPECT_EQ(answer, line);
  }
  EXPECT_EQ(program.end().exit_code, 0);  // by the end of its input
}

TEST(ChildProcess, WhatWasNotReceivedIsSeen) {
  ChildProcess program({.arguments = shell("printf 'a\\nb\\nc\\n'; cat"), .converse = true});
  EXPECT_EQ(program.lines().receive(deadline_in(kNever)).line, "a");
  EXPECT_EQ(program.lines().unread(), "b\nc\n");
  EXPECT_EQ(program.lines().receive(deadline_in(kNever)).line, "b");
  EXPECT_EQ(program.lines().receive(deadline_in(kNever)).line, "c");
  EXPECT_EQ(program.lines().unread(), "");
}

TEST(ChildProcess, NothingWaitsBehindADeadline) {
  ChildProcess program({.arguments = shell("sleep 20; true"), .converse = true, .own_group = true});
  EXPECT_EQ(program.lines().receive(deadline_in(0.05)).outcome, Outcome::kLate);
  EXPECT_EQ(program.lines().send(std::string(3'000'000, 'x'), deadline_in(0.05)), Outcome::kLate);
  program.kill();
  EXPECT_EQ(program.wait().signal, SIGKILL);
}

// Writing to it is no signal.
TEST(ChildProcess, OneThatHasEndedIsNoticed) {
  ChildProcess program({.arguments = shell("exit 3"), .converse = true});
  EXPECT_EQ(program.lines().receive(deadline_in(kNever)).outcome, Outcome::kEnded);
  EXPECT_EQ(program.lines().send("line", deadline_in(kNever)), Outcome::kEnded);
  const Ending ending = program.end();
  EXPECT_EQ(ending.exit_code, 3);
  EXPECT_EQ(ending.signal, 0);
  EXPECT_GT(ending.peak_resident_bytes, 100'000);
}

TEST(ChildProcess, HasVariablesOfItsOwn) {
  ::setenv("REYNARD_TEST_A", "a", 1);
  ::setenv("REYNARD_TEST_AB", "ab", 1);
  ChildProcess program({.arguments = shell("echo $REYNARD_TEST_A $REYNARD_TEST_AB $REYNARD_TEST_C"),
                        .environment = {"REYNARD_TEST_A=mine", "REYNARD_TEST_C=x=y"},
                        .read_output = true});
  EXPECT_EQ(program.read_output(), "mine ab x=y\n");
  EXPECT_EQ(program.read_output(), "");
  EXPECT_EQ(program.wait().exit_code, 0);
  EXPECT_STREQ(std::getenv("REYNARD_TEST_A"), "a");
  ::unsetenv("REYNARD_TEST_A");
  ::unsetenv("REYNARD_TEST_AB");
}

TEST(ChildProcess, StreamsGoToFilesAndLines) {
  const test::TempDir folder;
  ChildProcess program({.arguments = shell("echo out; echo error >&2; printf end >&2"),
                        .read_errors = true,
                        .output_file = folder / "output"});
  EXPECT_EQ(program.read_error_line(), "error\n");
  EXPECT_EQ(program.read_error_line(), "end");
  EXPECT_EQ(program.read_error_line(), "");
  program.wait();
  EXPECT_EQ(test::read_file(folder / "output"), "out\n");
}

// It has ended when the object is gone, whatever it does about signals.
TEST(ChildProcess, EndsByRequestOrByForce) {
  EXPECT_EQ(ChildProcess({.arguments = {"sleep", "20"}}).end().signal, SIGTERM);
  ChildProcess stubborn({.arguments = shell("trap '' TERM; echo; sleep 20; sleep 20"),
                         .read_output = true,
                         .own_group = true,
                         .patience_s = 0.1});
  stubborn.read_output();  // the trap is set
  const Ending ending = stubborn.end();
  EXPECT_EQ(ending.signal, SIGKILL);
  EXPECT_EQ(ending.exit_code, 128 + SIGKILL);
}

TEST(ChildProcess, OneThatCannotStartIsNamed) {
  EXPECT_SAYS(test::error_of([] { ChildProcess({.arguments = {"/nowhere/program"}}); }),
              "cannot start /nowhere/program: No such file");
}

}  // namespace
}  // namespace reynard::process
