// attention_bench [attention] [attention_cuda] [attention_memory] [decode] [decode_cuda]: rows of
// the operator as `reynard bench` measures them by default (..._cuda: with --device cuda, of
// attention with --peers), from a program that needs nothing but libtorch. Without arguments:
// attention.

#include "bench/attention.h"
#include "bench/attention_cuda.h"
#include "bench/decode.h"
#include "bench/decode_cuda.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <map>
#include <ranges>
#include <string>
#include <vector>

namespace reynard::bench {

namespace {

const std::map<std::string, Rows (*)()> kBenches = {
    {"attention", [] { return bench_attention({}); }},
    {"attention_cuda", [] { return bench_attention_cuda({.peers = true}); }},
    {"attention_memory", [] { return bench_attention_memory({}); }},
    {"decode", [] { return bench_decode({}); }},
    {"decode_cuda", [] { return bench_decode_cuda({}); }},
};

void run(std::vector<std::string> names) {
  if (names.empty()) names = {"attention"};
  for (const std::string& name : names) {
    if (kBenches.contains(name)) continue;
    throw Error(fmt::format("{} is no benchmark; expected some of {}",
                            name,
                            fmt::join(std::views::keys(kBenches), ", ")));
  }
  for (const std::string& name : names) print_rows(kBenches.at(name)());
}

}  // namespace

}  // namespace reynard::bench

int main(int argc, char** argv) {
  try {
    reynard::bench::run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "attention_bench: {}\n", error.what());
    return 2;
  }
}
