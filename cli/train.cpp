// reynard train: one experiment file, one run folder.

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/device_option.h"
#include "cli/message.h"
#include "cli/pruning_note.h"
#include "cli/stop_signal.h"
#include "cli/training_run.h"
#include "cli/unknown_option.h"
#include "reynard/config/config.h"
#include "reynard/tensor/counted.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

struct TrainArguments {
  std::string experiment;
  std::string device;  // empty: what the experiment says
  bool resume = false;
  bool quiet = false;
};

std::string train_footer() {
  return "Examples:\n"
         "  reynard train configs/quickstart/fox.toml\n"
         "  reynard train configs/quickstart/fox.toml --run.folder=runs/short "
         "--training.tokens=200000\n"
         "  reynard train configs/quickstart/fox.toml --resume\n"
         "  reynard train configs/760m/fox-pro.toml --device cuda\n"
         "\n"
         "configs/quickstart, configs/ablation and configs/fot read the text that ./quickstart "
         "prepares; --data.path=FILE.tokens names another.\n"
         "\n"
         "Ctrl-C writes a checkpoint and stops (exit code 130); --resume goes on from the newest "
         "valid checkpoint. With a budget of tokens the resumed run ends with the same bits as one "
         "that was never stopped; with training.minutes the learning rate follows the clock, so it "
         "does not.\n"
         "\n"
         "Keys of the experiment file, each also as --section.key=value:\n" +
         config::help_text(config::describe<training::Experiment>());
}

void run_train(const TrainArguments& arguments, std::vector<std::string> overrides) {
  if (!arguments.device.empty()) overrides.push_back("--training.device=" + arguments.device);
  const auto experiment = config::read_toml<training::Experiment>(arguments.experiment, overrides);
  std::vector<std::string> command = {"reynard", "train", arguments.experiment};
  command.insert(command.end(), overrides.begin(), overrides.end());
  if (!arguments.quiet) print_pruning_note(experiment.model);
  const training::RunResult result = run_training(
      experiment, {.resume = arguments.resume, .quiet = arguments.quiet, .command = command});
  if (!result.finished) {
    print_message("stopped after step {} ({}); go on with: {}{}\n",
                  result.steps,
                  counted(result.tokens, "token"),
                  command_line(),
                  arguments.resume ? "" : " --resume");
    throw ExitWith{kInterruptedExitCode};
  }
  fmt::print("{}: {}, {}, {:.1f} s, loss {:.4f}",
             experiment.run.folder,
             counted(result.steps, "step"),
             counted(result.tokens, "token"),
             result.seconds,
             result.loss);
  if (result.validation_loss) fmt::print(", held-out loss {:.4f}", *result.validation_loss);
  if (result.skipped_steps) fmt::print(", {} skipped", counted(result.skipped_steps, "step"));
  fmt::print("\n");
}

}  // namespace

void add_train(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* train = app.add_subcommand(
      "train", "Train a model as an experiment file (TOML) says: reynard train EXPERIMENT.toml");
  train->add_option("EXPERIMENT", arguments->experiment, "experiment file (TOML)")->required();
  add_device_option(*train, arguments->device);
  train->add_flag("--resume", arguments->resume, "go on with the run in run.folder");
  train->add_flag("--quiet", arguments->quiet, "no progress on stderr");
  train->allow_extras();
  train->footer(train_footer);
  train->callback([arguments, train] {
    check_options(*train);
    run_train(*arguments, train->remaining());
  });
}

}  // namespace reynard::cli
