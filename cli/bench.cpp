// reynard bench: speed and memory against peers measured in the same run.

#include "bench/attention.h"
#include "bench/attention_cuda.h"
#include "bench/decode.h"
#include "bench/decode_cuda.h"
#include "bench/forgetting_curve.h"
#include "bench/generate.h"
#include "bench/knn.h"
#include "bench/knn_cuda.h"
#include "bench/row_file.h"
#include "bench/serve.h"
#include "bench/start.h"
#include "bench/tokenizer.h"
#include "bench/train_step.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/numbers.h"
#include "cli/progress_bar.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <regex>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

// "B1 H8 T4096 D64", in any order, parts left out keep their defaults; G defaults to H.
bench::AttentionShape parse_shape(const std::string& text) {
  static const std::regex part(R"(([BHGTD])=?(\d{1,9})[ ,]*)");
  bench::AttentionShape shape;
  std::string rest = text;
  std::smatch match;
  bool has_groups = false;
  while (std::regex_search(rest, match, part, std::regex_constants::match_continuous)) {
    const int64_t value = std::stoll(match[2]);
    if (value == 0) break;
    switch (match[1].str()[0]) {
      case 'B':
        shape.B = value;
        break;
      case 'H':
        shape.H = value;
        break;
      case 'G':
        shape.G = value, has_groups = true;
        break;
      case 'T':
        shape.T = value;
        break;
      case 'D':
        shape.D = value;
        break;
    }
    rest = match.suffix();
  }
  if (!has_groups) shape.G = shape.H;
  if (!rest.empty() || shape.H % shape.G != 0) {
    throw Error(fmt::format(
        "bench: --shape \"{}\"; expected parts like \"B1 H8 G2 T4096 D64\" with G dividing H",
        text));
  }
  return shape;
}

template <class Bench>
struct BenchArguments {
  Bench bench;
  std::string json;
};

// Adds --json and what the command does: measure(*arguments) makes the rows.
template <class Arguments, class Measure>
void run_with_json(CLI::App& command,
                   const std::shared_ptr<Arguments>& arguments,
                   const Measure& measure) {
  command.add_option("--json", arguments->json, "file for the rows");
  command.callback([arguments, measure] {
    bench::check_rows_can_be_written(arguments->json);
    const auto rows = measure(*arguments);
    bench::print_rows(rows);
    bench::write_rows(rows, arguments->json);
  });
}

bool is_cuda(const std::string& device) {
  return device == "cuda" || (device == "auto" && tensor::choose_device("auto").is_cuda());
}

// Minutes: what was measured is kept whatever happens to the rest.
template <class Bench>
bench::Rows run_on_gpu(const char* name,
                       bench::Rows (*run)(const Bench&),
                       Bench bench,
                       const std::string& json) {
  ProgressBar bar(name, OffTerminal::kLines);
  bench.measured = [&](const bench::Rows& rows, int64_t done, int64_t all) {
    bar.show(done, all);
    bench::write_rows(rows, json);
  };
  return run(bench);
}

// Throws for an option that the bench of this device does not have.
void reject_options_of_the_other_device(const CLI::App& command,
                                        bool cuda,
                                        const std::vector<std::string>& only_cpu,
                                        const std::vector<std::string>& only_cuda) {
  for (const std::string& option : cuda ? only_cpu : only_cuda) {
    if (command.count(option) == 0) continue;
    throw Error(
        fmt::format("bench {}: {} is an option of --device {}; leave it out or choose that device",
                    command.get_name(),
                    option,
                    cuda ? "cpu" : "cuda"));
  }
}

void add_repeats(CLI::App& command, int& repeats) {
  command.add_option("--repeats", repeats, "timed runs; the median counts")
      ->capture_default_str()
      ->check(above_zero());
}

// Of a bench that has a default for each device, for which 0 stands.
void add_repeats(CLI::App& command, int& repeats, int on_cpu, int on_gpu) {
  const std::string text =
      fmt::format("timed runs; the median counts (default: {}, on a GPU {})", on_cpu, on_gpu);
  command.add_option("--repeats", repeats, text)->check(above_zero());
}

void add_attention_cuda(CLI::App& command, std::string& device, bench::AttentionCudaBench& bench) {
  command
      .add_option("--device",
                  device,
                  "cpu (default), cuda, which takes the next three options, or auto: a GPU where "
                  "there is one")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  command.add_flag("--peers",
                   bench.peers,
                   "cuda: time cuDNN, FlashAttention-2 and, where it is installed, FLA in the same "
                   "process ($REYNARD_PEER_PYTHON: a Python with torch for CUDA)");
  command.add_option("--lengths", bench.lengths, "cuda: default 4096,8192,16384,65536")
      ->delimiter(',')
      ->check(between(512, 1 << 20));
  command.add_option("--head-dims", bench.head_dims, "cuda: default 64,128,256")
      ->delimiter(',')
      ->check(between(8, 256));
}

void add_attention(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "attention",
      "attention forward and backward: dense against torch, pruned against own dense; on a GPU "
      "every --lengths x --head-dims with grouped heads and packed documents, the worst ratio on "
      "top");
  struct Arguments {
    bench::AttentionBench bench;
    bench::AttentionCudaBench cuda;
    std::string device = "cpu", shape, json;
    int repeats = 0;  // 0: the default of the device
  };
  auto arguments = std::make_shared<Arguments>();
  add_attention_cuda(*command, arguments->device, arguments->cuda);
  command->add_option("--shape",
                      arguments->shape,
                      "one shape for all rows, e.g. \"B1 H8 G8 T4096 D64\" (default: that one, "
                      "B1 H4 T16384 D64 and B1 H4 T4096 D128; pruned rows: B1 H8 T16384 D64)");
  command->add_option("--dtype", arguments->bench.dtypes, "f32, bf16 (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--only", arguments->bench.names, "names of the rows to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(arguments->bench.names));
  add_repeats(*command, arguments->repeats, arguments->bench.repeats, arguments->cuda.repeats);
  command->footer("Pruned rows on the CPU are timed half as often, but at least 3 times.");
  run_with_json(*command, arguments, [command](Arguments& given) {
    const bool cuda = is_cuda(given.device);
    reject_options_of_the_other_device(
        *command, cuda, {"--shape", "--dtype", "--only"}, {"--peers", "--lengths", "--head-dims"});
    if (given.repeats > 0) given.bench.repeats = given.cuda.repeats = given.repeats;
    if (cuda) {
      return run_on_gpu("bench attention", bench::bench_attention_cuda, given.cuda, given.json);
    }
    if (!given.shape.empty()) {
      given.bench.pruned_shape = parse_shape(given.shape);
      given.bench.dense_shapes = {given.bench.pruned_shape};
    }
    return bench::bench_attention(given.bench);
  });
}

void add_attention_memory(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "attention_memory", "peak memory of one long forward and backward pass over its tensors'");
  auto arguments = std::make_shared<BenchArguments<bench::AttentionMemoryBench>>();
  bench::AttentionMemoryBench& options = arguments->bench;
  command->add_option("--length", options.T, "tokens (default: 65536)");
  command->add_option("--dtype", options.dtype, "f32 or bf16 (default: f32, on a GPU bf16)")
      ->check(CLI::IsMember({"f32", "bf16"}));
  add_device_option(*command, options.device);
  run_with_json(
      *command, arguments, [](auto& given) { return bench::bench_attention_memory(given.bench); });
}

struct DecodeBenchArguments {
  bench::DecodeBench bench;
  bench::DecodeCudaBench cuda;
  std::string device = "cpu", shape, json;
  int repeats = 0;  // 0: the default of the device
};

bench::Rows run_decode_bench(const CLI::App& command, DecodeBenchArguments& given) {
  const bool cuda = is_cuda(given.device);
  reject_options_of_the_other_device(command, cuda, {"--chunk", "--dtype", "--only"}, {});
  if (given.repeats > 0) given.bench.repeats = given.cuda.repeats = given.repeats;
  if (!given.shape.empty()) {
    const bench::AttentionShape shape = parse_shape(given.shape);
    if (shape.B != 1) {
      throw Error(
          fmt::format("bench decode: --shape \"{}\": B is {}; one sequence is decoded, "
                      "leave B out",
                      given.shape,
                      shape.B));
    }
    bench::DecodeBench& options = given.bench;
    options.H = shape.H, options.G = shape.G, options.D = shape.D;
    options.length = options.prefill_length = shape.T;
    given.cuda.shapes = {shape};
  }
  if (!cuda) return bench::bench_decode(given.bench);
  return run_on_gpu("bench decode", bench::bench_decode_cuda, given.cuda, given.json);
}

void add_decode(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "decode",
      "attention on a paged cache: one token against a copy and a sum of the bytes, a chunk of a "
      "prefill against contiguous tensors; on a GPU one token in bf16 against a copy, pruned "
      "against own dense");
  auto arguments = std::make_shared<DecodeBenchArguments>();
  add_device_option(*command, arguments->device);
  command->add_option("--shape",
                      arguments->shape,
                      "\"H8 G8 T65536 D64\" (default; prefill rows: T8192; on a GPU seven shapes)");
  command->add_option("--chunk", arguments->bench.chunk, "cpu: tokens of a prefill chunk")
      ->capture_default_str()
      ->check(above_zero());
  command
      ->add_option(
          "--dtype", arguments->bench.dtypes, "cpu: of the pages: f32, bf16, int8 (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(arguments->bench.dtypes));
  command->add_option("--only", arguments->bench.names, "cpu: names of the rows to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(arguments->bench.names));
  add_repeats(*command, arguments->repeats, arguments->bench.repeats, arguments->cuda.repeats);
  run_with_json(*command, arguments, [command](DecodeBenchArguments& given) {
    return run_decode_bench(*command, given);
  });
}

struct KnnBenchArguments {
  bench::KnnBench bench;
  bench::KnnCudaBench cuda;
  std::string device = "cpu", json;
  // 0 and none: the defaults of the device.
  int64_t num_keys = 0;
  std::vector<int64_t> queries;
  int repeats = 0;
};

bench::Rows run_knn_bench(const CLI::App& command, KnnBenchArguments& given) {
  const bool cuda = is_cuda(given.device);
  reject_options_of_the_other_device(command, cuda, {"--dtype", "--only"}, {});
  bench::KnnBench& cpu = given.bench;
  if (given.num_keys > 0) cpu.num_keys = given.cuda.num_keys = given.num_keys;
  if (!given.queries.empty()) cpu.queries = given.cuda.queries = given.queries;
  if (given.repeats > 0) cpu.repeats = given.cuda.repeats = given.repeats;
  given.cuda.head_dim = cpu.head_dim, given.cuda.k = cpu.k;
  if (!cuda) return bench::bench_knn(cpu);
  return run_on_gpu("bench knn", bench::bench_knn_cuda, given.cuda, given.json);
}

void add_knn(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "knn",
      "exact search for the k best of many keys: against a sum over the same bytes and FAISS "
      "IndexFlatIP in f32 (scripts/requirements-test.txt), and its memory for scores; on a GPU "
      "against torch's matmul, keys in host memory against a copy");
  auto arguments = std::make_shared<KnnBenchArguments>();
  add_device_option(*command, arguments->device);
  command
      ->add_option(
          "--keys", arguments->num_keys, "keys of the head (default: 1000000, on a GPU 16777216)")
      ->check(above_zero());
  command->add_option("--head-dim", arguments->bench.head_dim, "D (default: 64)")
      ->check(above_zero());
  command->add_option("--k", arguments->bench.k, "keys to find (default: 128)")
      ->check(above_zero());
  command->add_option("--queries", arguments->queries, "default: 1,64,512; on a GPU 1,8,64,512")
      ->delimiter(',')
      ->check(above_zero());
  command->add_option("--dtype", arguments->bench.dtypes, "cpu: of the keys: bf16 (default), f32")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--only", arguments->bench.names, "cpu: names of the rows to measure")
      ->delimiter(',')
      ->check(CLI::IsMember(arguments->bench.names));
  add_repeats(*command, arguments->repeats, arguments->bench.repeats, arguments->cuda.repeats);
  run_with_json(*command, arguments, [command](KnnBenchArguments& given) {
    return run_knn_bench(*command, given);
  });
}

void add_train_step(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "train_step", "training steps of a FoX (Pro) against a PyTorch eager Transformer");
  auto arguments = std::make_shared<BenchArguments<bench::TrainStepBench>>();
  command->add_option("--model", arguments->bench.model, "10M (default) or 125M parameters")
      ->check(CLI::IsMember({"10M", "125M"}));
  command->add_option("--batch", arguments->bench.batch_size, "rows of a step")
      ->capture_default_str()
      ->check(above_zero());
  command->add_option("--length", arguments->bench.length, "tokens of a row")
      ->capture_default_str()
      ->check(above_zero());
  command->add_option("--dtype", arguments->bench.dtypes, "f32, bf16 (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16"}));
  command
      ->add_option(
          "--log-tolerance",
          arguments->bench.log_tolerance,
          "let ours prune, e.g. at -10 (default 0: off); with the gates of a model that has "
          "not learned yet nearly all heads are local")
      ->check(between(-100, 0));
  add_repeats(*command, arguments->bench.repeats);
  add_device_option(*command, arguments->bench.device);
  run_with_json(
      *command, arguments, [](auto& given) { return bench::bench_train_step(given.bench); });
}

void add_forgetting_curve_bench(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "forgetting_curve",
      "a whole forgetting curve against its forward passes alone: time and peak memory");
  auto arguments = std::make_shared<BenchArguments<bench::ForgettingCurveBench>>();
  bench::ForgettingCurveBench& options = arguments->bench;
  command->add_option("--model", options.model, "10M (default) or 125M parameters")
      ->check(CLI::IsMember({"10M", "125M"}));
  command->add_option("--length", options.length, "longest target (default: 2048)")
      ->check(above_zero());
  command
      ->add_option("--grid",
                   options.grid,
                   "paper (default): length / points, 2 length / points ... length; log: 8 ... "
                   "length by equal factors")
      ->check(CLI::IsMember({"paper", "log"}));
  command->add_option("--points", options.points, "lengths (default: 4)")->check(above_zero());
  command->add_option("--samples", options.samples, "targets per length (default: 1)")
      ->check(above_zero());
  command
      ->add_option("--pass-samples",
                   options.pass_samples,
                   "targets per length whose forward passes are timed alone (default: all)")
      ->check(above_zero());
  command->add_option("--seed", options.seed, "of where targets begin")->check(at_least_zero());
  command->add_option("--dtype", options.dtype, "f32 (default) or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command
      ->add_option("--batch-tokens",
                   options.batch_tokens,
                   "tokens of one forward pass; longer sequences go in pieces of it")
      ->capture_default_str()
      ->check(above_zero());
  add_repeats(*command, options.repeats);
  add_device_option(*command, options.device);
  run_with_json(
      *command, arguments, [](auto& given) { return bench::bench_forgetting_curve(given.bench); });
}

void add_generate_bench(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "generate",
      "prefill and decode of a llama against llama.cpp ($REYNARD_PEER_PYTHON: a Python with "
      "llama-cpp-python, gguf, safetensors); decode far into a text, pruned against whole");
  auto arguments = std::make_shared<BenchArguments<bench::GenerateBench>>();
  bench::GenerateBench& options = arguments->bench;
  command->add_option("--only", options.names, "llama, pruned (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember(options.names));
  command->add_option("--dtype", options.dtypes, "of weights: bf16, int8 (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "int8"}));
  command->add_option("--prompt", options.prompt, "tokens of the prefill")->capture_default_str();
  command->add_option("--tokens", options.tokens, "tokens of a decode")->capture_default_str();
  command->add_option("--length", options.length, "cached tokens of the pruned decode")
      ->capture_default_str();
  command->add_option("--layers", options.layers, "of both models")->capture_default_str();
  add_repeats(*command, options.repeats);
  add_device_option(*command, options.device);
  run_with_json(
      *command, arguments, [](auto& given) { return bench::bench_generate(given.bench); });
}

void add_serve_bench(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "serve", "tokens/s of many clients against one, and gaps beside a long prompt");
  auto arguments = std::make_shared<BenchArguments<bench::ServeBench>>();
  bench::ServeBench& options = arguments->bench;
  command->add_option("--only", options.names, "throughput, gap (default: both)")
      ->delimiter(',')
      ->check(CLI::IsMember(options.names));
  command->add_option("--clients", options.clients, "at once")->capture_default_str();
  command->add_option("--tokens", options.tokens, "that each writes")->capture_default_str();
  command->add_option("--long-prompt", options.long_prompt, "tokens of one client's prompt")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--layers", options.layers, "of the model")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--width", options.width, "of the model; heads have 64")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--dtype", options.dtype, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  add_device_option(*command, options.device);
  run_with_json(*command, arguments, [](auto& given) { return bench::bench_serve(given.bench); });
}

void add_start_bench(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "start", "seconds from exec to the first token of a model's text, and memory held");
  auto arguments = std::make_shared<BenchArguments<bench::StartBench>>();
  bench::StartBench& options = arguments->bench;
  command->add_option("--megabytes", options.megabytes, "sizes of the models (default: 500)")
      ->delimiter(',');
  command->add_option("--dtype", options.dtypes, "f32, bf16, int8 (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  add_repeats(*command, options.repeats);
  add_device_option(*command, options.device);
  run_with_json(*command, arguments, [](auto& given) { return bench::bench_start(given.bench); });
}

void add_tokenizer_speed(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "tokenizer", "encoding text in one thread against the PyPI package of the format");
  auto arguments = std::make_shared<BenchArguments<bench::TokenizerBench>>();
  command->add_option("TEXT", arguments->bench.text, "file of UTF-8 text")->required();
  command
      ->add_option(
          "TOKENIZER", arguments->bench.tokenizers, "tokenizer.json files and SentencePiece models")
      ->required();
  command->add_option("--max-bytes", arguments->bench.max_bytes, "read no more of the text")
      ->capture_default_str()
      ->check(between(1, 1 << 30));
  add_repeats(*command, arguments->bench.repeats);
  run_with_json(
      *command, arguments, [](auto& given) { return bench::bench_tokenizer(given.bench); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed and memory against peers");
  bench->require_subcommand(1);
  add_attention(*bench);
  add_attention_memory(*bench);
  add_decode(*bench);
  add_forgetting_curve_bench(*bench);
  add_knn(*bench);
  add_train_step(*bench);
  add_generate_bench(*bench);
  add_serve_bench(*bench);
  add_start_bench(*bench);
  add_tokenizer_speed(*bench);
  bench->footer(
      "Examples:\n"
      "  reynard bench attention --shape \"B1 H8 T16384 D64\" --dtype bf16 --json attention.json\n"
      "  reynard bench attention --device cuda --peers --lengths 16384 --head-dims 64,128\n"
      "  reynard bench decode --shape \"H32 G8 T65536 D128\"\n"
      "  reynard bench train_step --model 10M --length 8192 --batch 1\n"
      "  reynard bench tokenizer book.txt models/llama/tokenizer.json models/open_llama/"
      "tokenizer.model\n"
      "\n"
      "A row is a ratio to a peer that runs by turns with ours, after its results were compared.");
}

}  // namespace reynard::cli
