// reynard eval MODEL --task ...: measures a model on the user's text.

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/eval_lengths.h"
#include "cli/eval_measurements.h"
#include "cli/lm_eval.h"
#include "cli/message.h"
#include "cli/numbers.h"
#include "cli/repeatable.h"
#include "cli/unknown_option.h"
#include "reynard/config/config.h"
#include "reynard/evaluation/length_rules.h"
#include "reynard/evaluation/named.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

std::string eval_footer() {
  std::string text =
      "Examples:\n"
      "  reynard eval runs/fox --text data/python/held_out.tokens\n"
      "  reynard eval runs/fox --task forgetting_curve --text book.txt "
      "--forgetting_curve.grid=code\n"
      "  reynard eval runs/fox --task forgetting_curve --text held_out.tokens --text "
      "train=train.tokens --forgetting_curve.targets=text,train\n"
      "  reynard eval runs/fox --task per_position_loss,passkey --text book.txt --extrapolate 4\n"
      "  reynard eval models/fox-760m --task per_position_loss --text book.txt --length 65536 -o "
      "results\n"
      "  reynard eval --endpoint http://127.0.0.1:8000/v1 --tokenizer models/llama --task "
      "needle,passkey --text book.txt\n"
      "\n"
      "Results are OUTPUT/TASK.jsonl (one line per sample) and OUTPUT/TASK.json (the summary). A "
      "second run with the same settings, model and text goes on where the first stopped, also "
      "after Ctrl-C.\n"
      "\n"
      "Tasks:\n";
  for (const evaluation::TaskEntry& entry : evaluation::tasks()) {
    text += fmt::format("  {:20} {}\n", entry.name, entry.description);
  }
  text += fmt::format("  {:20} {}\n", kLmEval, "tasks of the installed lm-evaluation-harness");
  text += "\nSettings of the tasks, as --task.key=value:\n";
  return text + config::help_text(config::describe<evaluation::EvaluationConfig>());
}

// Options of a model that runs here: --dtype, --device, and a memory's, which the server of lm_eval
// is not given either.
void check_local_options(const EvalArguments& arguments, const CLI::App& command) {
  std::string given = given_option(arguments.memory);
  const bool harness =
      std::ranges::find(arguments.tasks, std::string_view(kLmEval)) != arguments.tasks.end();
  if (!arguments.remote.given() && !harness) return;
  for (const char* option : {"--dtype", "--device"}) {
    if (arguments.remote.given() && command.count(option) > 0) given = option;
  }
  if (given.empty()) return;
  throw Error(fmt::format("eval: {} is not possible with {}; leave it out",
                          given,
                          !arguments.remote.adapter.empty() ? "--adapter"
                          : arguments.remote.given()        ? "--endpoint"
                                                            : "the task lm_eval"));
}

// Options of a model elsewhere.
void check_remote_options(const EvalArguments& arguments, const CLI::App& command) {
  if (arguments.remote.given()) return;
  const std::string key_option = "--api-key-variable";
  const std::vector<std::string> options = {"--endpoint-model",
                                            "--chat",
                                            "--concurrency",
                                            "--attempts",
                                            "--timeout",
                                            "--bos",
                                            "--eos",
                                            key_option};
  for (const std::string& option : options) {
    if (command.count(option) == 0) continue;
    // The harness takes one too.
    if (option == key_option && std::ranges::count(arguments.tasks, kLmEval) > 0) continue;
    throw Error(
        fmt::format("eval: {} is for --endpoint or --adapter, not for a model that runs here; "
                    "leave it out",
                    option));
  }
}

void check_task(const std::string& name) {
  std::vector<std::string_view> known;
  for (const evaluation::TaskEntry& entry : evaluation::tasks()) known.push_back(entry.name);
  known.emplace_back(kLmEval);
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  evaluation::fail_unknown_task("eval", name, known);
}

void check_arguments(const EvalArguments& arguments, const CLI::App& command) {
  for (const auto& [name, length] :
       {std::pair("--length", arguments.length), {"--train-length", arguments.train_length}}) {
    tensor::check_value(
        length <= evaluation::kMaxLength, "eval", name, length, "at most 2^40 tokens");
  }
  tensor::check_value(arguments.extrapolate == 0 || arguments.extrapolate >= 2,
                      "eval",
                      "--extrapolate",
                      arguments.extrapolate,
                      ">= 2");
  tensor::check_value(arguments.extrapolate == 0 || arguments.length == 0,
                      "eval",
                      "--extrapolate",
                      arguments.extrapolate,
                      "not together with --length");
  tensor::check_value(
      !arguments.published_lengths || (arguments.length == 0 && arguments.extrapolate == 0),
      "eval",
      "--published-lengths",
      "given",
      "not together with --length or --extrapolate");
  tensor::check_value(
      arguments.dtype == "f32" || arguments.dtype == "bf16" || arguments.dtype == "int8",
      "eval",
      "--dtype",
      arguments.dtype,
      "f32, bf16 or int8");
  tensor::check_value(arguments.checkpoints.empty() || arguments.checkpoints == "all",
                      "eval",
                      "--checkpoints",
                      arguments.checkpoints,
                      "all");
  const bool remote = arguments.remote.given();
  if (remote != arguments.model.empty()) {
    throw Error(remote ? "eval: give either MODEL or --endpoint or --adapter"
                       : "eval: MODEL is required, or --endpoint, or --adapter");
  }
  tensor::check_value(!remote || arguments.checkpoints.empty(),
                      "eval",
                      "--checkpoints",
                      arguments.checkpoints,
                      "a run on this machine");
  check_local_options(arguments, command);
  check_remote_options(arguments, command);
  if (!arguments.memory.folder.empty() && !arguments.checkpoints.empty()) {
    throw Error(
        "eval: --memory is of one model's weights and --checkpoints measures several; leave one of "
        "them out");
  }
  for (const std::string& name : arguments.tasks) check_task(name);
  const bool others = arguments.tasks.empty() ||
                      std::any_of(arguments.tasks.begin(),
                                  arguments.tasks.end(),
                                  [](const std::string& name) { return name != kLmEval; });
  if (others && arguments.texts.empty()) throw Error("eval: --text is required");
}

// A setting of a task that does not run would be read by nothing.
void check_settings(const EvalArguments& arguments) {
  const auto runs = [&](const evaluation::TaskEntry& entry) {
    if (arguments.tasks.empty()) return entry.by_default;
    return std::ranges::find(arguments.tasks, entry.name) != arguments.tasks.end();
  };
  for (const std::string& option : arguments.settings) {
    for (const evaluation::TaskEntry& entry : evaluation::tasks()) {
      if (!is_setting_of(entry.name, option) || runs(entry)) continue;
      throw Error(fmt::format(
          "eval: {}: the task {} is not measured; add it to --task", option, entry.name));
    }
  }
}

// 0: unknown. An adapter may say its own.
int64_t trained_length(const EvalArguments& arguments, const std::optional<RemoteModel>& remote) {
  if (arguments.train_length > 0) return arguments.train_length;
  if (remote) return remote->train_length;
  return arguments.remote.given() ? 0 : find_model(arguments.model).train_length();
}

void run_eval(EvalArguments arguments, const CLI::App& command) {
  check_options(command);
  arguments.settings = command.remaining();
  // What is no option shows first: a slip in --text is not a missing text.
  config::from_toml<evaluation::EvaluationConfig>("", "command line", arguments.settings);
  check_arguments(arguments, command);
  check_settings(arguments);
  const bool harness = std::erase(arguments.tasks, kLmEval) > 0;
  const bool others = !harness || !arguments.tasks.empty();
  std::optional<RemoteModel> remote;
  if (others && arguments.remote.given()) {
    remote = open_remote_model(arguments.remote, arguments.tokenizer);
  }
  std::vector<std::string> overrides = with_length(arguments.settings, arguments.length);
  if (arguments.published_lengths) overrides = with_published_lengths(std::move(overrides));
  if (arguments.extrapolate > 0) {
    overrides = with_extrapolation(
        std::move(overrides), arguments.extrapolate, trained_length(arguments, remote));
  }
  auto config =
      config::from_toml<evaluation::EvaluationConfig>("", "command line", std::move(overrides));
  if (arguments.skip_bad) {
    config.few_shot.skip_bad = config.longbench.skip_bad = true;
    config.ruler.skip_bad = config.babilong.skip_bad = true;
  }
  if (harness) measure_with_harness(arguments, config);
  if (!others) return;
  if (remote) return measure_remote(arguments, config, *remote);
  if (!arguments.checkpoints.empty()) return measure_checkpoints(arguments, config);
  const ModelFolder folder = find_model(arguments.model);
  if (arguments.length == 0 && arguments.train_length == 0 && folder.train_length() == 0) {
    print_message(
        "{}: nothing says what length it was trained on; lengths are those for any model, "
        "unless you give --train-length\n",
        folder.model.string());
  }
  measure_model(arguments,
                config,
                folder,
                arguments.output.empty() ? folder.results() : fs::path(arguments.output));
}

// What is measured.
void add_task_options(CLI::App& command, EvalArguments& arguments) {
  command.add_option("MODEL", arguments.model, "Run folder or model folder");
  command
      .add_option("--task",
                  arguments.tasks,
                  "Tasks, separated by commas; default: the first five below, but those that the "
                  "model or the text cannot give")
      ->delimiter(',');
  make_repeatable(*command.add_option(
      "--text",
      arguments.texts,
      "Token file (.tokens), or text as `reynard prepare` takes it; NAME=FILE adds one that "
      "tasks name; required but for lm_eval"));
  command.add_option("--tokenizer,--endpoint-tokenizer",
                     arguments.tokenizer,
                     "Tokenizer of the model, where its folder holds none (see `reynard tokenizer "
                     "encode --help`)");
  command
      .add_option("--length",
                  arguments.length,
                  "Length of the texts of every task that has one; default: per task")
      ->check(above_zero());
  command
      .add_option("--extrapolate",
                  arguments.extrapolate,
                  "N: measure at 1, 2, 4 ... N times the length that the model was trained on")
      ->check(above_zero());
  command.add_flag(
      "--published-lengths",
      arguments.published_lengths,
      "Every task at the lengths that it was published with, however long the model's own");
}

// How the model computes and what it remembers.
void add_model_options(CLI::App& command, EvalArguments& arguments) {
  command.add_option("--dtype", arguments.dtype, "Compute in f32, bf16 or int8")
      ->capture_default_str();
  add_device_option(command, arguments.device);
  command
      .add_option("--train-length",
                  arguments.train_length,
                  "Length that the model was trained on, where its folder does not say")
      ->check(above_zero());
  command.add_option("--batch-tokens", arguments.batch_tokens, "Tokens of one forward pass")
      ->check(above_zero())
      ->capture_default_str();
  add_options(command, arguments.memory);
}

// Where results go, and what of earlier ones is used.
void add_result_options(CLI::App& command, EvalArguments& arguments) {
  command.add_option("-o,--out,--output",
                     arguments.output,
                     "Folder for results; default: RUN/eval, or eval/NAME for other models");
  command.add_option("--checkpoints",
                     arguments.checkpoints,
                     "all: measure every checkpoint of the run, for metrics by tokens seen");
  command.add_flag("--resume",
                   arguments.resume,
                   "Insist on going on: samples of other settings are an error, not replaced");
  command.add_flag(
      "--skip-bad", arguments.skip_bad, "Leave malformed lines of data files out and count them");
  add_remote_options(command, arguments.remote);
  command.add_flag("--json", arguments.json, "Print one JSON line per task");
}

}  // namespace

void add_eval(CLI::App& app) {
  const auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand("eval", "Measure a model on a text");
  add_task_options(*command, *arguments);
  add_model_options(*command, *arguments);
  add_result_options(*command, *arguments);
  command->allow_extras();
  command->footer(eval_footer);
  command->callback([arguments, command] { run_eval(*arguments, *command); });
}

}  // namespace reynard::cli
