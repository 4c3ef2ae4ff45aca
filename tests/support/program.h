#pragma once
// Runs the built reynard program as a user does.

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::test {

struct ProgramRun {
  std::vector<std::string> arguments;  // after the program's name
  std::string folder = {};             // working folder; empty: this one
  std::string input_file = {};         // its standard input; empty: nothing
  std::string output_file = {};        // its standard output; empty: kept for the result
  int64_t memory_limit = 0;            // bytes of data the program may have; 0: no limit
  int64_t file_limit = 0;              // bytes a file may have, as on a full disk; 0: no limit
  double seconds_limit = 60;           // then it is killed
  std::string interrupt_at_file =
      {};  // once this file has bytes, SIGINT arrives twice; empty: never
};

struct ProgramResult {
  int exit_code = -1;  // 128 + the signal's number when a signal ended it
  std::string output;  // stdout
  std::string errors;  // stderr
};

ProgramResult run_program(const ProgramRun& run);

}  // namespace reynard::test
