#pragma once
// Speed of generation: prefill and decode of a llama of 134M parameters against llama.cpp on the
// same weights, and decode far into a text with pages that were forgotten and freed against all.

#include "bench/rows.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::bench {

struct GenerateBench {
  int64_t prompt = 512;     // tokens of the prefill
  int64_t tokens = 32;      // of a decode behind it
  int64_t length = 65'536;  // cached tokens of the pruned decode
  int64_t layers = 12;
  std::vector<std::string> dtypes = {"bf16", "int8"};  // of weights
  std::vector<std::string> names = {"llama", "pruned"};
  int repeats = 5;
  std::string device = "cpu";  // or, without int8 and llama, cuda, auto (tensor::choose_device)
};

// For weights of bf16 and int8 (llama.cpp: Q8_0). llama_prefill, llama_decode: tokens/s.
// pruned_decode: milliseconds of a token of a FoX (Pro) with 12 heads of 64, nine of them with gate
// logits N(2, 1) and three with N(12, 1), at e^-10; pruned_cache: megabytes of pages held, of bf16.
// Throws reynard::Error when the peer does not run or writes other logits.
Rows bench_generate(const GenerateBench& options);

}  // namespace reynard::bench
