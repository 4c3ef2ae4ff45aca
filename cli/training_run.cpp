#include "cli/training_run.h"

#include "cli/message.h"
#include "cli/progress_bar.h"
#include "cli/stop_signal.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/training/kept_memory.h"

#include <fmt/format.h>

#include <string>

namespace reynard::cli {

namespace {

std::string rate_text(double rate) {
  return rate >= 1e6   ? fmt::format("{:.2f}M", rate / 1e6)
         : rate >= 1e3 ? fmt::format("{:.1f}k", rate / 1e3)
                       : fmt::format("{:.0f}", rate);
}

Progress shown(const training::RunProgress& progress) {
  return {.share = progress.fraction,
          .seconds_left = progress.seconds_left,
          .note = fmt::format("step {} loss {:.3f} {} tokens/s",
                              progress.step,
                              progress.loss,
                              rate_text(progress.tokens_per_second))};
}

void print_warning(const std::string& line) {
  print_message("reynard: {}\n", line);
}

}  // namespace

training::RunResult run_training(const training::Experiment& experiment, const TrainingRun& run) {
  training::keep_freed_memory();
  ProgressBar bar(checkpoint::run_name(experiment.run.folder), OffTerminal::kLines);
  training::RunOptions options = {.resume = run.resume,
                                  .progress = {},
                                  .say = {},
                                  .warn = print_warning,
                                  .stop = &stop_flag(),
                                  .command = run.command,
                                  .version = REYNARD_VERSION};
  if (!run.quiet) {
    options.progress = [&](const training::RunProgress& now) { bar.show(shown(now)); };
    options.say = [](const std::string& line) { print_message("{}\n", line); };
  }
  return training::run(experiment, options);
}

}  // namespace reynard::cli
