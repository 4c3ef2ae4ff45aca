#pragma once
// How soon a program that was just started writes, and how much memory it holds then.

#include "bench/rows.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct StartBench {
  std::vector<int64_t> megabytes = {500};  // sizes of the models' files
  std::vector<std::string> dtypes = {"f32", "bf16", "int8"};
  int repeats = 3;
  std::string device = "cpu";  // or cuda, auto, as generate's; int8 is for the CPU
};

// For llamas in f32 files, in the page cache, run in each dtype: first_token, seconds from exec of
// `reynard generate` to the first byte of text, against the limit of 2 s; peak_memory, megabytes
// that it held at most, mapped pages included, against the file's.
Rows bench_start(const StartBench& options);

}  // namespace reynard::bench
