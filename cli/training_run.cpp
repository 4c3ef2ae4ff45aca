#include "cli/training_run.h"

#include "cli/message.h"
#include "cli/model_tokenizer.h"
#include "cli/progress_bar.h"
#include "cli/stop_signal.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/data/recorded_tokenizer.h"
#include "reynard/data/token_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/training/kept_memory.h"

#include <fmt/format.h>

#include <filesystem>
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

// Weights that know other tokens by the same ids would be worth no more than random ones.
void check_tokens_of_first_weights(const training::Experiment& experiment, bool resume) {
  const std::string& start = experiment.run.start_from;
  const bool goes_on = resume && !checkpoint::list_checkpoints(experiment.run.folder).empty();
  if (start.empty() || goes_on) return;
  const data::TokenFile text(experiment.data.path);
  const std::filesystem::path model = models::model_folder(start);
  const std::string own = tokenizer_of_model(model, models::load_config(model).vocab_size);
  if (own.empty()) return;
  check_same_tokenizer(*data::recorded_tokenizer(text),
                       fmt::format("data.path = {}", experiment.data.path),
                       *tokenizer::make_tokenizer(own),
                       fmt::format("run.start_from = {}", start),
                       "prepare the text with the tokenizer of that model");
}

}  // namespace

training::RunResult run_training(const training::Experiment& experiment, const TrainingRun& run) {
  check_tokens_of_first_weights(experiment, run.resume);
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
