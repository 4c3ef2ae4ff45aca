// reynard dictionary: training text for dictionary lookup, one document per line.

#include "reynard/evaluation/dictionary.h"

#include "cli/command.h"
#include "cli/output_file.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <array>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::cli {

namespace {

struct DictionaryArguments {
  std::string output;
  int64_t documents = 10000;
  int64_t tokens = 512;
  int64_t seed = 1;
  double similar = 0;
};

// Of a share `similar` of the documents, half have keys that differ from one key in one symbol,
// half keys of 4, 5 or 10 symbols: most agree with others in all but one. Values there are made of
// four symbols: what follows a key's mark then tells keys apart no better.
evaluation::DictionaryVocabulary draw_vocabulary(evaluation::PythonRandom& random, double similar) {
  constexpr int64_t kSteps = 1000000;
  constexpr std::array<int64_t, 3> kFew = {4, 5, 10};
  const double drawn = static_cast<double>(random.up_to(kSteps - 1)) / kSteps;
  if (drawn >= similar) return {};
  evaluation::DictionaryVocabulary vocabulary{.value_symbols = 4};
  if (drawn < similar / 2) {
    vocabulary.one_change = true;
  } else {
    vocabulary.key_symbols = kFew[static_cast<size_t>(random.up_to(2))];
  }
  return vocabulary;
}

// The first half of a document defines records, each with a key of its own: no more than there are
// keys of the fewest kind.
void check_tokens_of_similar(int64_t tokens) {
  const int64_t keys = evaluation::num_keys({.one_change = true});
  const int64_t most = 2 * (keys + 1) * evaluation::kRecordTokens - 1;
  tensor::check_value(tokens <= most,
                      "dictionary",
                      "--tokens",
                      tokens,
                      fmt::format("<= {}, whose {} records --similar has keys for", most, keys));
}

void run_dictionary(const DictionaryArguments& arguments) {
  using tensor::check_value;
  check_value(arguments.documents >= 1, "dictionary", "--documents", arguments.documents, ">= 1");
  check_value(arguments.tokens >= 20, "dictionary", "--tokens", arguments.tokens, ">= 20");
  check_value(arguments.similar >= 0 && arguments.similar <= 1,
              "dictionary",
              "--similar",
              arguments.similar,
              "0 ... 1");
  if (arguments.similar > 0) check_tokens_of_similar(arguments.tokens);
  check_value(arguments.seed >= 0, "dictionary", "--seed", arguments.seed, ">= 0");
  check_output("dictionary", arguments.output, "{\"text\":", "of lines of {\"text\": ...}");
  std::string lines;
  for (int64_t i = 0; i < arguments.documents; ++i) {
    evaluation::PythonRandom random = evaluation::sample_random(arguments.seed, i);
    evaluation::DictionaryVocabulary vocabulary;
    if (arguments.similar > 0) vocabulary = draw_vocabulary(random, arguments.similar);
    const evaluation::Dictionary dictionary =
        evaluation::make_dictionary(random,
                                    vocabulary,
                                    {.definition_tokens = arguments.tokens / 2,
                                     .query_tokens = arguments.tokens / 2,
                                     .block = arguments.tokens / 2});
    std::string text;
    for (const int64_t token : dictionary.definitions) text += static_cast<char>(token);
    for (const int64_t token : dictionary.queries) text += static_cast<char>(token);
    lines += nlohmann::json{{"text", text}}.dump() + "\n";
  }
  write_output(arguments.output, lines);
}

}  // namespace

void add_dictionary(CLI::App& app) {
  const auto arguments = std::make_shared<DictionaryArguments>();
  CLI::App* command =
      app.add_subcommand("dictionary", "Write training text for the task dictionary");
  command->add_option("-o,--output", arguments->output, "The file (.jsonl)")->required();
  command->add_option("--documents", arguments->documents, "Documents")->capture_default_str();
  command
      ->add_option("--tokens", arguments->tokens, "Tokens of a document: definitions, then queries")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Seed; another than that of the evaluation")
      ->capture_default_str();
  command
      ->add_option("--similar",
                   arguments->similar,
                   "Share of the documents whose keys differ in few symbols: hard to tell apart")
      ->capture_default_str();
  command->footer(
      "Each document defines keys, then asks for some: the first half of its tokens is "
      "definitions, the second queries. Tokens are printable characters of the byte tokenizer.\n"
      "\n"
      "Example:\n"
      "  reynard dictionary -o dictionary.jsonl\n"
      "  reynard prepare dictionary.jsonl -o data --held-out 0.01\n"
      "  reynard train my.toml --data.path=data/train.tokens\n"
      "  reynard eval runs/my --task dictionary --text data/held_out.tokens");
  command->callback([arguments] { run_dictionary(*arguments); });
}

}  // namespace reynard::cli
