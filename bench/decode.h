#pragma once
// Speed of attention on a paged cache: decode of one token against a copy and a sum of the bytes
// that it reads, and a prefill chunk against the operator on contiguous tensors.

#include "bench/rows.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct DecodeBench {
  int64_t H = 8, G = 8, D = 64;
  int64_t length = 65536;         // cached tokens of a decode
  int64_t prefill_length = 8192;  // cached tokens of a prefill, the chunk included
  int64_t chunk = 1024;           // tokens of the prefill chunk
  std::vector<std::string> dtypes = {"f32", "bf16", "int8"};  // of the pages
  std::vector<std::string> names = {"decode", "prefill"};
  int repeats = 9;
};

// Rows of decode are GB/s: the bytes of all keys, values, scales and sums of gates over the time of
// a token, and for the copy, which both reads and writes them, twice their bytes over its time.
// Throws reynard::Error where the results differ from those of the operator on contiguous tensors.
Rows bench_decode(const DecodeBench& options);

}  // namespace reynard::bench
