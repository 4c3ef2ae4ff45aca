// reynard eval MODEL --task ...: measures a model on the user's text.

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/device_option.h"
#include "cli/evaluation_inputs.h"
#include "cli/lm_eval.h"
#include "cli/progress_bar.h"
#include "cli/pruning_note.h"
#include "cli/remote_model.h"
#include "cli/weight_option.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/config.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"
#include "reynard/training/saved_run.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

struct EvalArguments {
  std::string model;
  RemoteArguments remote;
  std::vector<std::string> tasks;
  std::vector<std::string> texts;
  std::string tokenizer;
  std::string output;
  std::string dtype = "f32";
  std::string device = "auto";
  int64_t length = 0;
  int64_t train_length = 0;
  int64_t extrapolate = 0;
  int64_t batch_tokens = 16384;
  int64_t memory_tokens = -1;  // -1: as the model says
  int64_t memory_keys = -1;
  std::string checkpoints;
  bool skip_bad = false;
  bool json = false;
};

std::string footer() {
  std::string text =
      "Examples:\n"
      "  reynard eval runs/fox --text data/python/held_out.tokens\n"
      "  reynard eval runs/fox --task forgetting_curve --text book.txt "
      "--forgetting_curve.grid=code\n"
      "  reynard eval runs/fox --task forgetting_curve --text held_out.tokens --text "
      "train=train.tokens "
      "--forgetting_curve.targets=text,train\n"
      "  reynard eval runs/fox --task per_position_loss,passkey --text book.txt --extrapolate 4\n"
      "  reynard eval models/fox-760m --task per_position_loss --text book.txt --length 65536 -o "
      "results\n"
      "  reynard eval --endpoint http://127.0.0.1:8000/v1 --tokenizer models/llama --task "
      "needle,passkey --text book.txt\n"
      "\n"
      "Results are OUTPUT/TASK.jsonl (one line per sample) and OUTPUT/TASK.json (the summary). A "
      "second\n"
      "run with the same settings, model and text goes on where the first stopped.\n"
      "\n"
      "Tasks:\n";
  for (const evaluation::TaskEntry& entry : evaluation::tasks()) {
    text += fmt::format("  {:20} {}\n", entry.name, entry.description);
  }
  text += fmt::format("  {:20} {}\n", kLmEval, "tasks of the installed lm-evaluation-harness");
  text += "\nSettings of the tasks, as --task.key=value:\n";
  return text + config::help_text(config::describe<evaluation::EvaluationConfig>());
}

bool is_given(const std::vector<std::string>& overrides, const std::string& option) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& o) {
    return o.rfind(option, 0) == 0;
  });
}

// --extrapolate 4: every task that has lengths at 1, 2 and 4 times the training length, those that
// were given ones of their own left alone.
std::vector<std::string> with_extrapolation(std::vector<std::string> overrides,
                                            int64_t times,
                                            int64_t train_length) {
  if (times == 0) return overrides;
  if (train_length == 0) {
    throw Error(
        "eval: --extrapolate: nothing says what length the model was trained on; give "
        "--train-length");
  }
  std::string lengths;
  for (int64_t at = 1; at < times; at *= 2) lengths += fmt::format("{},", at * train_length);
  const int64_t longest = times * train_length;
  lengths += std::to_string(longest);
  const auto add = [&](const char* key, const std::string& value) {
    const std::string option = fmt::format("--{}", key);
    if (!is_given(overrides, option)) overrides.push_back(fmt::format("{}={}", option, value));
  };
  add("per_position_loss.length", std::to_string(longest));
  // The model reads twice the target.
  add("forgetting_curve.length", std::to_string(longest / 2));
  add("needle.longest", std::to_string(longest));
  for (const char* key : {"passkey.lengths",
                          "ruler.lengths",
                          "babilong.lengths",
                          "dictionary.lengths",
                          "few_shot.lengths"}) {
    add(key, lengths);
  }
  return overrides;
}

// --length stands for the length of every task that has one and was not given its own.
std::vector<std::string> with_length(std::vector<std::string> overrides, int64_t length) {
  if (length == 0) return overrides;
  for (const char* key : {"per_position_loss.length",
                          "forgetting_curve.length",
                          "pruning.length",
                          "inside.length",
                          "needle.longest",
                          "passkey.lengths",
                          "ruler.lengths",
                          "babilong.lengths",
                          "dictionary.lengths",
                          "few_shot.lengths",
                          "longbench.length"}) {
    const std::string option = fmt::format("--{}", key);
    if (!is_given(overrides, option)) overrides.push_back(fmt::format("{}={}", option, length));
  }
  return overrides;
}

std::vector<std::string> tasks_for(const EvalArguments& arguments, bool forgets) {
  if (!arguments.tasks.empty()) return arguments.tasks;
  std::vector<std::string> names;
  for (const evaluation::TaskEntry& entry : evaluation::tasks()) {
    if (entry.by_default && (entry.name != "pruning" || forgets)) names.emplace_back(entry.name);
  }
  return names;
}

void print_summary(const nlohmann::json& summary, bool as_json) {
  if (as_json) {
    nlohmann::json line = summary;
    line.erase("series");
    // Names of files need not be UTF-8.
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("{}:\n", summary.at("task").get<std::string>());
  for (const auto& [key, value] : summary.at("metrics").items()) {
    if (key.rfind("val/", 0) == 0 || value.is_array()) continue;
    const bool has_text = value.is_object() && value.contains("text");
    fmt::print("  {:24} {}\n", key, has_text ? value.at("text").get<std::string>() : value.dump());
  }
}

evaluation::ModelFacts facts_of(const models::DecoderConfig& config, int64_t train_length) {
  return {train_length,
          config.attention.log_pruning_tolerance,
          config.attention.forget_gate != models::ForgetGate::kNone};
}

void check_arguments(const EvalArguments& arguments) {
  tensor::check_value(arguments.length >= 0, "eval", "--length", arguments.length, ">= 1");
  tensor::check_value(
      arguments.train_length >= 0, "eval", "--train-length", arguments.train_length, ">= 1");
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
      arguments.batch_tokens >= 1, "eval", "--batch-tokens", arguments.batch_tokens, ">= 1");
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
  for (const std::string& name : arguments.tasks) {
    if (name != kLmEval) evaluation::task_named(name);
  }
  const bool others = arguments.tasks.empty() ||
                      std::any_of(arguments.tasks.begin(),
                                  arguments.tasks.end(),
                                  [](const std::string& name) { return name != kLmEval; });
  if (others && arguments.texts.empty()) throw Error("eval: --text is required");
}

using Tasks = std::vector<std::unique_ptr<evaluation::Task>>;

// What the task needs and the scorer cannot give; empty: nothing.
std::string cannot_run(evaluation::Task& task, const evaluation::Scorer& scorer) {
  const evaluation::Requests requests = task.requests();
  return requests.size == 0 ? "" : scorer.cannot_answer(requests.at(0));
}

// All tasks are made before the first runs: a text too short for the last shows at once.
Tasks make_tasks(const EvalArguments& arguments,
                 const evaluation::EvaluationConfig& config,
                 const evaluation::Corpus& corpus,
                 const evaluation::ModelFacts& facts,
                 const evaluation::Scorer& scorer) {
  Tasks tasks;
  for (const std::string& name : tasks_for(arguments, facts.forgets)) {
    auto task = evaluation::task_named(name).make(corpus, config, facts);
    const std::string missing = cannot_run(*task, scorer);
    if (missing.empty()) {
      tasks.push_back(std::move(task));
    } else if (!arguments.tasks.empty()) {
      throw Error(fmt::format(
          "eval: {} needs {}, which this model cannot be asked for: give a MODEL on this machine",
          name,
          missing));
    }
  }
  return tasks;
}

// Runs the tasks into options.folder. Returns the summaries.
std::vector<nlohmann::json> measure_tasks(const EvalArguments& arguments,
                                          const Tasks& tasks,
                                          evaluation::Scorer& scorer,
                                          evaluation::EvaluateOptions options) {
  std::vector<nlohmann::json> summaries;
  for (const auto& task : tasks) {
    {
      ProgressBar bar(task->name());
      options.progress = [&](int64_t done, int64_t all) { bar.show(done, all); };
      summaries.push_back(evaluation::evaluate(scorer, *task, options));
    }
    print_summary(summaries.back(), arguments.json);
  }
  if (!arguments.json) fmt::print("results: {}\n", options.folder.string());
  return summaries;
}

// Applies --memory-tokens and --memory-keys; what they are, for the identity of results.
nlohmann::json limit_memory(const EvalArguments& arguments, models::Decoder& decoder) {
  if (arguments.memory_tokens < 0 && arguments.memory_keys < 0) return {};
  const models::DecoderConfig& config = decoder.config();
  tensor::check_value(config.has_memory(),
                      "eval",
                      "--memory-tokens or --memory-keys",
                      "given",
                      "none: the model has no memory");
  decoder.set_memory_limits(
      arguments.memory_tokens < 0 ? config.memory.capacity : arguments.memory_tokens,
      arguments.memory_keys < 0 ? config.memory.top_k : arguments.memory_keys);
  return {{"tokens", config.memory.capacity}, {"keys", config.memory.top_k}};
}

// Measures one model with all tasks; results go into the folder. Returns the summaries.
std::vector<nlohmann::json> measure_model(const EvalArguments& arguments,
                                          const evaluation::EvaluationConfig& config,
                                          const ModelFolder& folder,
                                          const fs::path& output) {
  const TextCorpus text =
      open_texts(arguments.texts, folder, models::load_config(folder.model), arguments.tokenizer);
  models::Decoder decoder = models::open_model(
      folder.model, weight_format(arguments.dtype), tensor::choose_device(arguments.device));
  const nlohmann::json memory = limit_memory(arguments, decoder);
  print_pruning_note(decoder.config());

  const int64_t train_length =
      arguments.train_length > 0 ? arguments.train_length : folder.train_length();
  const evaluation::ModelFacts facts = facts_of(decoder.config(), train_length);
  evaluation::EvaluateOptions options;
  options.folder = output;
  options.batch_tokens = arguments.batch_tokens;
  options.identity = {{"model", folder.identity},
                      {"text", text.identity},
                      {"dtype", arguments.dtype},
                      {"device", decoder.device().is_cuda() ? "cuda" : "cpu"}};
  if (!memory.is_null()) options.identity["memory"] = memory;
  options.about = {{"name", folder.name},
                   {"model", folder.model.string()},
                   {"text", text.name},
                   {"train_length", train_length},
                   {"command", command_line()}};

  const auto scorer = evaluation::make_decoder_scorer(decoder, arguments.batch_tokens);
  return measure_tasks(arguments,
                       make_tasks(arguments, config, text.corpus, facts, *scorer),
                       *scorer,
                       std::move(options));
}

// The same for a model behind an endpoint or an adapter.
void measure_remote(const EvalArguments& arguments, const evaluation::EvaluationConfig& config) {
  const RemoteModel model = open_remote_model(arguments.remote, arguments.tokenizer);
  const TextCorpus text = open_texts(arguments.texts, model.text);
  const evaluation::ModelFacts facts{
      arguments.train_length > 0 ? arguments.train_length : model.train_length, 0, false};
  evaluation::EvaluateOptions options;
  options.folder =
      arguments.output.empty() ? fs::path("eval") / model.name : fs::path(arguments.output);
  options.batch_tokens = arguments.batch_tokens;
  options.identity = model.identity;
  options.identity["text"] = text.identity;
  options.about = {{"name", model.name},
                   {"model", model.where},
                   {"text", text.name},
                   {"train_length", facts.train_length},
                   {"command", command_line()}};
  const auto scorer = model.make_scorer(text.corpus);
  measure_tasks(arguments,
                make_tasks(arguments, config, text.corpus, facts, *scorer),
                *scorer,
                std::move(options));
}

// Every checkpoint of the run into a folder of its own, and all metrics by the tokens seen.
void measure_checkpoints(const EvalArguments& arguments,
                         const evaluation::EvaluationConfig& config) {
  const std::vector<fs::path> checkpoints = training::list_checkpoints(arguments.model);
  if (checkpoints.empty()) {
    throw Error(
        fmt::format("eval: --checkpoints: {} has no checkpoints/step-*; keep them with "
                    "training.keep_checkpoints",
                    arguments.model));
  }
  const fs::path output =
      arguments.output.empty() ? fs::path(arguments.model) / "eval" : fs::path(arguments.output);
  nlohmann::json points = nlohmann::json::array();
  std::string name;
  for (const fs::path& path : checkpoints) {
    const ModelFolder folder = find_model(path);
    name = folder.run_json.value("name", fs::path(arguments.model).filename().string());
    const fs::path step = path.filename();
    if (!arguments.json) fmt::print("{}\n", step.string());
    const nlohmann::json counters = read_object(path / "trainer.json");
    for (const nlohmann::json& summary :
         measure_model(arguments, config, folder, output / "checkpoints" / step)) {
      points.push_back({{"checkpoint", step.string()},
                        {"tokens", counters.value("tokens", int64_t{0})},
                        {"task", summary.at("task")},
                        {"metrics", summary.at("metrics")}});
    }
  }
  const nlohmann::json summary{{"task", "checkpoints"},
                               {"name", name},
                               {"command", command_line()},
                               {"metrics", {{"checkpoints", checkpoints.size()}}},
                               {"series", {{"points", points}}}};
  checkpoint::write_atomically(
      output / "checkpoints.json",
      summary.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// The harness asks the endpoint, or a server of the model.
void measure_with_harness(const EvalArguments& arguments,
                          const evaluation::EvaluationConfig& config) {
  const std::string& endpoint = arguments.remote.endpoint;
  HarnessRun run{.config = config.lm_eval,
                 .output = arguments.output,
                 .serve = {},
                 .url = {},
                 .model = {},
                 .identity = {},
                 .about = {{"command", command_line()}}};
  if (!arguments.remote.adapter.empty() || !arguments.checkpoints.empty()) {
    throw Error("eval: lm_eval needs MODEL or --endpoint");
  }
  if (endpoint.empty()) {
    const ModelFolder folder = find_model(arguments.model);
    run.serve = {folder.model.string(), "--dtype", arguments.dtype};
    if (!arguments.tokenizer.empty()) {
      run.serve.insert(run.serve.end(), {"--tokenizer", arguments.tokenizer});
    }
    run.identity = {{"model", folder.identity}, {"dtype", arguments.dtype}};
    run.about["name"] = folder.name;
    run.about["model"] = folder.model.string();
    if (arguments.output.empty()) run.output = folder.results();
  } else {
    const RemoteModel model = open_remote_model(arguments.remote, arguments.tokenizer);
    run.url = model.url;
    run.model = model.model;
    run.identity = model.identity;
    run.about["name"] = model.name;
    run.about["model"] = model.where;
    if (arguments.output.empty()) run.output = fs::path("eval") / model.name;
  }
  // The harness takes its key from this variable; `reynard serve` wants the same as an endpoint.
  const char* key = std::getenv(arguments.remote.api_key_variable.c_str());
  if (key != nullptr) ::setenv("OPENAI_API_KEY", key, /*overwrite=*/1);
  print_summary(run_harness(run), arguments.json);
}

void run_eval(EvalArguments arguments, const std::vector<std::string>& given) {
  check_arguments(arguments);
  std::vector<std::string> overrides = with_length(given, arguments.length);
  if (arguments.extrapolate > 0) {
    int64_t trained = arguments.train_length;
    if (trained == 0 && !arguments.remote.given()) {
      trained = find_model(arguments.model).train_length();
    }
    overrides = with_extrapolation(std::move(overrides), arguments.extrapolate, trained);
  }
  auto config =
      config::from_toml<evaluation::EvaluationConfig>("", "command line", std::move(overrides));
  if (arguments.skip_bad) {
    config.few_shot.skip_bad = config.longbench.skip_bad = true;
    config.ruler.skip_bad = config.babilong.skip_bad = true;
  }
  if (std::erase(arguments.tasks, kLmEval) > 0) {
    measure_with_harness(arguments, config);
    if (arguments.tasks.empty()) return;
  }
  if (arguments.remote.given()) return measure_remote(arguments, config);
  if (!arguments.checkpoints.empty()) return measure_checkpoints(arguments, config);
  const ModelFolder folder = find_model(arguments.model);
  measure_model(arguments,
                config,
                folder,
                arguments.output.empty() ? folder.results() : fs::path(arguments.output));
}

}  // namespace

void add_eval(CLI::App& app) {
  const auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand("eval", "Measure a model on a text");
  command->add_option("MODEL", arguments->model, "Run folder or model folder");
  command
      ->add_option("--task",
                   arguments->tasks,
                   "Tasks, separated by commas; default: the first five below, where they apply")
      ->delimiter(',');
  command
      ->add_option(
          "--text",
          arguments->texts,
          "Token file (.tokens), or text as `reynard prepare` takes it; NAME=FILE adds one that "
          "tasks name; required but for lm_eval")
      ->allow_extra_args(false);
  command->add_option("--tokenizer,--endpoint-tokenizer",
                      arguments->tokenizer,
                      "Tokenizer of the model, where its folder holds none (see `reynard tokenizer "
                      "encode --help`)");
  command->add_option(
      "--length", arguments->length, "Length for every task that has one; default: per task");
  command->add_option("--extrapolate",
                      arguments->extrapolate,
                      "N: measure at 1, 2, 4 ... N times the length that the model was trained on");
  command->add_option("-o,--output",
                      arguments->output,
                      "Folder for results; default: RUN/eval, or eval/NAME for other models");
  command->add_option("--dtype", arguments->dtype, "Compute in f32, bf16 or int8")
      ->capture_default_str();
  add_device_option(*command, arguments->device);
  command->add_option("--train-length",
                      arguments->train_length,
                      "Length that the model was trained on, where its folder does not say");
  command->add_option("--batch-tokens", arguments->batch_tokens, "Tokens of one forward pass")
      ->capture_default_str();
  command
      ->add_option("--memory-tokens",
                   arguments->memory_tokens,
                   "Newest tokens that a model's memory keeps; 0: all; default: as its config says")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option(
          "--memory-keys",
          arguments->memory_keys,
          "Best keys of the memory per query and head; 0: all; default: as its config says")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--checkpoints",
                      arguments->checkpoints,
                      "all: measure every checkpoint of the run, for metrics by tokens seen");
  command->add_flag(
      "--skip-bad", arguments->skip_bad, "Leave malformed lines of data files out and count them");
  add_remote_options(*command, arguments->remote);
  command->add_flag("--json", arguments->json, "Print one JSON line per task");
  command->allow_extras();
  command->footer(footer);
  command->callback([arguments, command] { run_eval(*arguments, command->remaining()); });
}

}  // namespace reynard::cli
