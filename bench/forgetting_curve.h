#pragma once
// What a forgetting curve costs beyond the forward passes that it needs: the whole evaluation
// (sampling, scoring, files, statistics) against the same sequences through the model alone.

#include "bench/rows.h"

#include <cstdint>
#include <string>

namespace reynard::bench {

struct ForgettingCurveBench {
  std::string model = "10M";  // or 125M
  std::string dtype = "f32";  // or bf16
  int64_t length = 2048;      // longest target; a sequence is twice as long
  std::string grid =
      "paper";          // length / points, 2 length / points ... length; or log: 8 ... length
  int64_t points = 4;   // lengths
  int64_t samples = 1;  // targets per length
  // Targets per length whose passes are timed alone; 0: as many. Time depends on lengths only.
  int64_t pass_samples = 0;
  int64_t seed = 0;              // of where targets begin
  int64_t batch_tokens = 16384;  // of one forward pass; longer sequences go in pieces of it
  int repeats = 3;
  std::string device = "cpu";  // or cuda, auto (tensor::choose_device): of both
};

// Two rows. Tokens per second: a ratio of 0.83 is 1.2 times the time of the passes alone. Peak
// memory above that of the model, on a GPU of tensors there: a ratio of 1 is that of the longest
// sequence's forward pass.
Rows bench_forgetting_curve(const ForgettingCurveBench& options);

}  // namespace reynard::bench
