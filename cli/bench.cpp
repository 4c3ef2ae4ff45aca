// reynard bench: speed and memory against peers measured in the same run.

#include "bench/attention.h"
#include "bench/train_step.h"
#include "cli/command.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <regex>
#include <string>

namespace reynard::cli {

namespace {

// "B1 H8 T4096 D64", in any order, parts left out keep their defaults; G defaults to H.
void parse_shape(const std::string& text, bench::AttentionBench& options) {
  static const std::regex part(R"(([BHGTD])=?(\d{1,9})[ ,]*)");
  std::string rest = text;
  std::smatch match;
  bool has_groups = false;
  while (std::regex_search(rest, match, part, std::regex_constants::match_continuous)) {
    const int64_t value = std::stoll(match[2]);
    if (value == 0) break;
    switch (match[1].str()[0]) {
      case 'B':
        options.B = value;
        break;
      case 'H':
        options.H = value;
        break;
      case 'G':
        options.G = value, has_groups = true;
        break;
      case 'T':
        options.T = options.pruned_T = value;
        break;
      case 'D':
        options.D = value;
        break;
    }
    rest = match.suffix();
  }
  if (!has_groups) options.G = options.H;
  if (!rest.empty() || options.H % options.G != 0) {
    throw Error(fmt::format(
        "bench: --shape \"{}\"; expected parts like \"B1 H8 G2 T4096 D64\" with G dividing H",
        text));
  }
}

void add_attention(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "attention", "attention forward and backward: dense against torch, pruned against own dense");
  struct Arguments {
    bench::AttentionBench bench;
    std::string shape, json;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option(
      "--shape", arguments->shape, "e.g. \"B1 H8 G8 T4096 D64\" (default; pruned rows: T16384)");
  command->add_option("--dtype", arguments->bench.dtypes, "f32, bf16 (default: both)")
      ->delimiter(',');
  command->add_option("--only", arguments->bench.names, "names of the rows to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(arguments->bench.names));
  command->add_option("--repeats", arguments->bench.repeats, "timed runs; the median counts")
      ->check(CLI::PositiveNumber);
  command->add_option("--json", arguments->json, "file for the rows");
  command->callback([arguments] {
    if (!arguments->shape.empty()) parse_shape(arguments->shape, arguments->bench);
    const auto rows = bench::bench_attention(arguments->bench);
    bench::print_rows(rows);
    bench::write_rows(rows, arguments->json);
  });
}

void add_attention_memory(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "attention_memory", "peak memory of one long forward and backward pass over its tensors'");
  struct Arguments {
    int64_t length = 65536;
    std::string dtype = "f32", json;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--length", arguments->length, "tokens (default: 65536)");
  command->add_option("--dtype", arguments->dtype, "f32 (default) or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--json", arguments->json, "file for the row");
  command->callback([arguments] {
    const auto rows = bench::bench_attention_memory(arguments->length, arguments->dtype);
    bench::print_rows(rows);
    bench::write_rows(rows, arguments->json);
  });
}

void add_train_step(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "train_step", "training steps of a 10M FoX (Pro) against a PyTorch eager Transformer");
  struct Arguments {
    bench::TrainStepBench bench;
    std::string json;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--batch", arguments->bench.batch_size, "rows of a step")
      ->check(CLI::PositiveNumber);
  command->add_option("--length", arguments->bench.length, "tokens of a row")
      ->check(CLI::PositiveNumber);
  command->add_option("--dtype", arguments->bench.dtypes, "f32, bf16 (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--repeats", arguments->bench.repeats, "timed steps; the median counts")
      ->check(CLI::PositiveNumber);
  command->add_option("--json", arguments->json, "file for the rows");
  command->callback([arguments] {
    const auto rows = bench::bench_train_step(arguments->bench);
    bench::print_rows(rows);
    bench::write_rows(rows, arguments->json);
  });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "measure speed and memory against peers");
  bench->require_subcommand(1);
  add_attention(*bench);
  add_attention_memory(*bench);
  add_train_step(*bench);
}

}  // namespace reynard::cli
