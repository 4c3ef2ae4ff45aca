// reynard tokenizer train: a byte-level BPE vocabulary from text.

#include "cli/command.h"
#include "cli/output_file.h"
#include "cli/progress_bar.h"
#include "reynard/config/json_file.h"
#include "reynard/data/count_pieces.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer_folder.h"
#include "reynard/tokenizer/train_bpe.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::cli {

namespace {

constexpr int64_t kNumBytes = 256;
constexpr int64_t kMaxVocabulary = 1 << 20;

struct TokenizerTrainArguments {
  std::vector<std::string> inputs;
  std::string output;
  int64_t vocab_size = 32000;
  int64_t min_count = 2;
  std::string pattern = "gpt2";
  data::CountOptions count;
};

constexpr const char* kTokenizerTrainFooter =
    "Examples:\n"
    "  reynard tokenizer train books/ -o tokenizer.json --vocab-size 8192\n"
    "  reynard tokenizer train src/ --glob '*.py' --pattern qwen2 -o code/tokenizer.json\n"
    "  reynard prepare books/ --tokenizer tokenizer.json -o data/books\n"
    "\n"
    "The 256 bytes are tokens, so every text can be written. The same text gives the same "
    "vocabulary, whatever the number of threads. tokenizer.json is what the package `tokenizers` "
    "reads.\n";

bool is_tokenizer_json(const std::filesystem::path& file) {
  return config::json_object_or_null(file).contains(nlohmann::json::json_pointer("/model/vocab"));
}

void check_arguments(const TokenizerTrainArguments& arguments) {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) throw Error("tokenizer train: " + message);
  };
  const std::vector<std::string>& special = arguments.count.special_tokens;
  const std::set<std::string> different(special.begin(), special.end());
  const int64_t least = kNumBytes + static_cast<int64_t>(special.size());
  require(arguments.vocab_size >= least && arguments.vocab_size <= kMaxVocabulary,
          fmt::format("--vocab-size {}; expected {} (the bytes and special tokens) to {}",
                      arguments.vocab_size,
                      least,
                      kMaxVocabulary));
  require(arguments.min_count >= 1,
          fmt::format("--min-count {}; expected at least 1", arguments.min_count));
  require(arguments.count.num_threads >= 0,
          fmt::format("--threads {}; expected at least 0", arguments.count.num_threads));
  require(different.size() == special.size() && different.count("") == 0,
          "--special needs different tokens that are not empty");
  tokenizer::check_special_tokens(special);
  require(!std::filesystem::is_directory(arguments.output),
          fmt::format("--output {} is a folder; name a file, such as {}/tokenizer.json",
                      arguments.output,
                      arguments.output));
  for (const std::string& input : arguments.inputs) {
    std::error_code one_is_absent;
    require(!std::filesystem::equivalent(input, arguments.output, one_is_absent),
            fmt::format("-o {}: is the text that is read; give another name", arguments.output));
  }
  check_output("tokenizer train", arguments.output, is_tokenizer_json, "a tokenizer.json");
}

void run_train(const TokenizerTrainArguments& arguments) {
  check_arguments(arguments);
  data::CountOptions count = arguments.count;
  count.inputs.assign(arguments.inputs.begin(), arguments.inputs.end());
  count.output = arguments.output;
  count.pattern = *tokenizer::split_pattern_named(arguments.pattern);
  std::optional<tokenizer::PieceCounts> counts;
  {
    ProgressBar bar("reading");
    counts = data::count_pieces(count, [&](int64_t done, int64_t all) { bar.show(done, all); });
  }
  const auto num_special = static_cast<int64_t>(count.special_tokens.size());
  tokenizer::LearnOptions learn;
  learn.num_merges = arguments.vocab_size - kNumBytes - num_special;
  learn.min_count = arguments.min_count;
  tokenizer::Merges merges;
  {
    ProgressBar bar("joining pairs");
    learn.progress = [&](int64_t done, int64_t all) { bar.show(done, all); };
    merges = tokenizer::learn_merges(*counts, learn);
  }
  const std::filesystem::path output = arguments.output;
  write_output(output, tokenizer::bpe_tokenizer_json(merges, count.pattern, count.special_tokens));
  const auto num_merges = static_cast<int64_t>(merges.size());
  fmt::print("{}: {} tokens, learnt from {} of text\n",
             arguments.output,
             kNumBytes + num_merges + num_special,
             counted(counts->num_pieces(), "different piece"));
  if (num_merges < learn.num_merges) {
    fmt::print("no other pair of tokens occurs {}: fewer than the {} tokens asked for\n",
               counted(arguments.min_count, "time"),
               arguments.vocab_size);
  }
}

}  // namespace

void add_tokenizer_train(CLI::App& tokenizer) {
  CLI::App* train = tokenizer.add_subcommand("train", "Learn a byte-level BPE from text");
  const auto arguments = std::make_shared<TokenizerTrainArguments>();
  arguments->count.special_tokens = {"<|endoftext|>"};
  train->add_option("INPUT", arguments->inputs, "text files, .jsonl, .gz, .zst and folders")
      ->required();
  train->add_option("-o,--output", arguments->output, "tokenizer.json to write")->required();
  train
      ->add_option("--vocab-size", arguments->vocab_size, "tokens, bytes and special ones included")
      ->capture_default_str();
  train
      ->add_option(
          "--min-count", arguments->min_count, "pairs that occur less often are not joined")
      ->capture_default_str();
  train->add_option("--pattern", arguments->pattern, "how text is split: gpt2, llama3 or qwen2")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2"}));
  train
      ->add_option("--special",
                   arguments->count.special_tokens,
                   "special tokens, with the last ids; <|endoftext|> begins and ends texts")
      ->delimiter(',')
      ->capture_default_str();
  train
      ->add_option("--glob",
                   arguments->count.patterns,
                   "only files of folders whose name or path in the folder matches (repeatable)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  train->add_option(
      "--field", arguments->count.field, "field of the text in .jsonl files; default: text");
  train->add_option("--threads", arguments->count.num_threads, "0: as many as the machine has")
      ->capture_default_str();
  train->footer(kTokenizerTrainFooter);
  train->callback([arguments] { run_train(*arguments); });
}

}  // namespace reynard::cli
