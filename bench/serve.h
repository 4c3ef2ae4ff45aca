#pragma once
// What clients of a server have of continuous batching: tokens per second of many against one, and
// how long those who write wait for each token while another's long prompt is read. The engine is
// asked in this process: HTTP adds less than a millisecond.

#include "bench/rows.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct ServeBench {
  int64_t clients = 16;
  int64_t tokens = 64;              // that each client writes
  int64_t long_prompt = 32'768;     // of one client among the others
  int64_t width = 256, layers = 4;  // heads have 64 dimensions
  std::string dtype = "f32";
  std::string device = "cpu";  // or cuda, auto (tensor::choose_device)
  std::vector<std::string> names = {"throughput", "gap"};
};

// throughput: tokens/s of all clients and of one. gap: 95th percentile of the milliseconds between
// tokens with and without the long prompt; first_token_late: milliseconds from when a client joins,
// 0.2 s after the long prompt came, until it has its first token and until the long prompt is read.
// Throws reynard::Error for a long prompt that is read before the client joins.
Rows bench_serve(const ServeBench& options);

}  // namespace reynard::bench
