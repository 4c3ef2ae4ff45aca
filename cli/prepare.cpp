// reynard prepare: text -> token files.

#include "reynard/data/prepare.h"
#include "cli/command.h"
#include "cli/progress_bar.h"
#include "reynard/config/fields.h"
#include "reynard/config/json_file.h"
#include "reynard/tensor/counted.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::cli {

namespace {

using nlohmann::ordered_json;

struct PrepareArguments {
  data::PrepareOptions options;
  std::vector<std::string> inputs;
  std::string output;
  int64_t roll_seed = 0;
  bool json = false;
};

constexpr const char* kPrepareFooter =
    "Examples:\n"
    "  reynard prepare book.txt -o data/book --held-out 0.05\n"
    "  reynard prepare src/ --glob '*.py' --min-bytes 4096 -o data/python --held-out 0.05\n"
    "  reynard prepare books/ --tokenizer models/gpt2/tokenizer.json -o data/books\n"
    "  reynard prepare part-*.jsonl.zst --field content --roll 1 -o data/web\n"
    "  reynard prepare questions.jsonl --dialogues --tokenizer models/llama -o data/questions\n"
    "\n"
    "A text file is one document, a line of a .jsonl file is one; .gz and .zst are unpacked. Text "
    "must be UTF-8. Files in folders that are not text are left out and counted. The result does "
    "not depend on the number of threads.\n";

std::string with_unit(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

void print_summary(const data::PrepareSummary& summary) {
  for (const data::PreparedFile& file : summary.written) {
    fmt::print("{}: {} in {}, {} of text\n",
               file.path.string(),
               counted(file.num_tokens, "token"),
               counted(file.num_documents, "document"),
               with_unit(static_cast<double>(file.num_text_bytes)));
  }
  fmt::print("{} read\n", counted(summary.num_files, "file"));
  for (const data::Skipped& skipped : summary.skipped) {
    constexpr size_t kShown = 5;
    fmt::print("left out: {}: {}\n", skipped.reason, skipped.count);
    for (const std::string& name : skipped.names | std::views::take(kShown)) {
      fmt::print("  {}\n", config::printable(name));
    }
    if (skipped.names.size() > kShown) {
      fmt::print("  and {} more; --json names all\n", skipped.names.size() - kShown);
    }
  }
}

ordered_json json_of(const data::PrepareSummary& summary) {
  ordered_json json = {{"written", ordered_json::array()},
                       {"files_read", summary.num_files},
                       {"left_out", ordered_json::array()}};
  for (const data::PreparedFile& file : summary.written) {
    json["written"].push_back({{"path", file.path.string()},
                               {"tokens", file.num_tokens},
                               {"documents", file.num_documents},
                               {"text_bytes", file.num_text_bytes}});
  }
  for (const data::Skipped& skipped : summary.skipped) {
    json["left_out"].push_back(
        {{"reason", skipped.reason}, {"count", skipped.count}, {"names", skipped.names}});
  }
  return json;
}

void run_prepare(const PrepareArguments& arguments) {
  data::PrepareSummary summary;
  {
    ProgressBar bar("preparing");
    summary = data::prepare(arguments.options,
                            [&](int64_t done, int64_t total) { bar.show(done, total); });
  }
  if (arguments.json) {
    fmt::print("{}\n", config::json_text(json_of(summary)));
  } else {
    print_summary(summary);
  }
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto* command = app.add_subcommand("prepare", "Turn text into token files");
  auto arguments = std::make_shared<PrepareArguments>();
  data::PrepareOptions& options = arguments->options;
  command->add_option("INPUT", arguments->inputs, "text files, .jsonl, .gz, .zst and folders")
      ->required();
  command
      ->add_option("-o,--output",
                   arguments->output,
                   "folder for train.tokens (and held_out.tokens); made if needed")
      ->required();
  command->add_option("--held-out",
                      options.held_out,
                      "share of the text that goes to held_out.tokens: whole files, chosen by the "
                      "hash of their names; the end of a single file; lines of .jsonl files");
  command
      ->add_option("--glob",
                   options.patterns,
                   "only files of folders whose name or path in the folder matches (repeatable)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option(
          "--tokenizer",
          options.tokenizer,
          "byte (ids 0-255, BOS 256, EOS 257), or a model folder, tokenizer.json, tiktoken "
          "rank file or SentencePiece model; json: before it for JSON-escaped text")
      ->capture_default_str();
  auto* field = command->add_option(
      "--field", options.field, "field of the text in .jsonl files; default: text");
  command
      ->add_flag("--dialogues",
                 options.dialogues,
                 "lines of .jsonl files are {\"prompt\", \"response\"} or {\"messages\"}; only "
                 "responses and what the assistant says count in the loss")
      ->excludes(field);
  command->add_option("--min-bytes", options.min_bytes, "leave out documents of fewer bytes")
      ->capture_default_str();
  command->add_flag(
      "--deduplicate", options.deduplicate, "leave out documents that came before, byte for byte");
  auto* roll = command->add_option("--roll",
                                   arguments->roll_seed,
                                   "SEED: roll every long document by a random shift, so that the "
                                   "position in a document says nothing (FoX, appendix C)");
  command
      ->add_option("--roll-min-tokens",
                   options.roll_min_tokens,
                   "with --roll: documents with fewer tokens stay as they are")
      ->capture_default_str()
      ->needs(roll);
  command->add_option("--threads", options.num_threads, "0: as many as the machine has")
      ->capture_default_str();
  command->add_flag(
      "--json",
      arguments->json,
      "print one JSON line: what was written, and the names of all that was left out");
  command->footer(kPrepareFooter);
  command->callback([arguments, roll] {
    arguments->options.inputs.assign(arguments->inputs.begin(), arguments->inputs.end());
    arguments->options.output = arguments->output;
    if (*roll) arguments->options.roll_seed = arguments->roll_seed;
    run_prepare(*arguments);
  });
}

}  // namespace reynard::cli
