#include "reynard/training/run.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/directory.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/config/config.h"
#include "reynard/data/loader.h"
#include "reynard/data/recorded_tokenizer.h"
#include "reynard/data/token_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/process/resident_memory.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/device.h"
#include "reynard/training/gate_statistics.h"
#include "reynard/training/metrics.h"
#include "reynard/training/profile.h"
#include "reynard/training/run_checks.h"
#include "reynard/training/run_json.h"
#include "reynard/training/saved_run.h"
#include "reynard/training/trainer.h"
#include "reynard/training/unread_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

namespace reynard::training {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A run that failed before its first line of metrics (out of memory in the first step, a full disk)
// has nothing to go on from: without its files the same command can be given again.
void remove_begun(const fs::path& folder, bool keep_folder) {
  std::error_code ignored;
  const fs::path metrics = folder / "metrics.jsonl";
  if (fs::exists(metrics) && fs::file_size(metrics, ignored) > 0) return;
  if (!checkpoint::list_checkpoints(folder).empty()) return;
  if (fs::exists(folder / "checkpoints")) {
    checkpoint::remove_unfinished(folder / "checkpoints");
    fs::remove(folder / "checkpoints", ignored);
  }
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == "run.json" || name == "experiment.toml" || name == "metrics.jsonl" ||
                      name == "profile.json" || name.starts_with("events.out.tfevents.");
    if (ours) fs::remove(entry.path(), ignored);
  }
  if (!keep_folder) fs::remove(folder, ignored);  // only when it is empty
}

void write_experiment(const Experiment& experiment) {
  checkpoint::write_atomically(fs::path(experiment.run.folder) / "experiment.toml",
                               config::to_toml(experiment));
}

// What is known of the steps since the last line of metrics, and the loss of the last tenth.
class Window {
 public:
  void add(const StepResult& result) {
    last_ = result;
    if (result.loss_tokens > 0) has_counted_ = true;
    if (result.skipped || result.loss_tokens == 0) return;
    loss_ += result.loss * result.loss_tokens;
    loss_tokens_ += result.loss_tokens;
    recent_.push_back(result.loss);
    while (static_cast<int64_t>(recent_.size()) > std::max<int64_t>(1, result.step / 10)) {
      recent_.pop_front();
    }
  }

  // One line of metrics.jsonl; starts a new window at `seconds`, `tokens`.
  Json line(const Trainer& trainer) {
    const double now = trainer.seconds();
    rate_ = (last_.tokens - begin_tokens_) / std::max(now - begin_seconds_, 1e-9);
    mean_loss_ = loss_tokens_ > 0 ? loss_ / loss_tokens_ : std::nan("");
    Json line = {{"step", last_.step},
                 {"tokens", last_.tokens},
                 {"loss", mean_loss_},
                 {"lr", last_.learning_rate},
                 {"grad_norm", last_.grad_norm},
                 {"tokens_per_s", rate_},
                 {"seconds", now},
                 {"skipped_steps", trainer.skipped_steps()},
                 {"peak_memory_bytes", process::peak_resident_bytes()}};
    if (last_.documents > 0) line["documents"] = last_.documents;
    if (last_.accuracy >= 0) line["accuracy"] = last_.accuracy;
    if (trainer.device().is_cuda()) {
      line["peak_gpu_memory_bytes"] = tensor::peak_gpu_memory_bytes(trainer.device());
    }
    loss_ = loss_tokens_ = 0;
    begin(trainer);
    return line;
  }

  // From now on its tokens are timed.
  void begin(const Trainer& trainer) {
    begin_seconds_ = trainer.seconds();
    begin_tokens_ = trainer.tokens();
  }

  // Time of the window in which nothing was trained.
  void leave_out(double seconds) { begin_seconds_ += seconds; }

  double recent_loss() const {
    double sum = 0;
    for (const double loss : recent_) sum += loss;
    return recent_.empty() ? std::nan("") : sum / static_cast<double>(recent_.size());
  }
  LossesSoFar losses() const {
    return {.recent = {recent_.begin(), recent_.end()}, .sum = loss_, .tokens = loss_tokens_};
  }
  void restore(const LossesSoFar& losses) {
    recent_.assign(losses.recent.begin(), losses.recent.end());
    has_counted_ = !losses.recent.empty();
    loss_ = losses.sum, loss_tokens_ = losses.tokens;
  }
  // Whether any token so far counted in the loss.
  bool has_counted() const { return has_counted_; }
  double mean_loss() const { return mean_loss_; }
  double rate() const { return rate_; }

 private:
  StepResult last_;
  std::deque<double> recent_;
  bool has_counted_ = false;
  int64_t begin_tokens_ = 0;
  double loss_ = 0, loss_tokens_ = 0, begin_seconds_ = 0, mean_loss_ = 0, rate_ = 0;
};

void add_gates(Json& line, const GateShares& gates, bool prunes) {
  if (gates.closed) line["gates_closed"] = *gates.closed;
  if (gates.open) line["gates_open"] = *gates.open;
  if (prunes && gates.pruned) line["pruned_share"] = *gates.pruned;
}

// Whether the last step crossed a multiple of `every` tokens.
bool crossed(const Trainer& trainer, int64_t every) {
  return every > 0 && trainer.tokens() / every !=
                          (trainer.tokens() - trainer.experiment().tokens_per_step()) / every;
}

class Run {
 public:
  Run(const Experiment& experiment, const RunOptions& options)
      : options_(options),
        folder_(experiment.run.folder),
        text_(data::TokenFile(experiment.data.path).fingerprint()),
        tokenizer_(data::recorded_tokenizer_files(data::TokenFile(experiment.data.path))),
        trainer_(experiment, training_loader(experiment)) {
    // Those of the experiment, where it names them, are the same (check_texts()).
    const data::TokenFile text(experiment.data.path);
    trainer_.model().name_text_ends(text.header().bos, text.header().eos);
  }

  RunResult train() {
    begin();
    if (finished_) return *finished_;
    while (!trainer_.done() && !stopped()) step();
    if (stopped() && !trainer_.done()) {
      if (saved_step_ != trainer_.steps()) save(permanent_due_);
      return result();
    }
    return end();
  }

 private:
  const TrainingConfig& config() const { return trainer_.experiment().training; }
  bool prunes() const { return trainer_.experiment().model.attention.log_pruning_tolerance < 0; }
  bool stopped() const { return options_.stop && options_.stop->load(); }

  void begin() {
    process::forget_peak_resident_bytes();
    tensor::reset_peak_gpu_memory(trainer_.device());
    if (!options_.resume || !resume()) {
      const std::string note = note_on_first_weights(trainer_.experiment());
      if (!note.empty()) tell(options_.warn, note);
      trainer_.take_first_weights();
    }
    first_step_ = trainer_.steps();
    finished_ = result_of_before();
    // Before experiment.toml is that of this run, whose result it would else be taken for.
    if (!finished_) remove_result(folder_);
    if (!nothing_to_train_) {
      write_run_json(trainer_, changed_, options_);
      write_experiment(trainer_.experiment());
    } else {
      write_experiment(*nothing_to_train_);
    }
    const int64_t written = trainer_.steps() - (open_line_.is_null() ? 0 : 1);
    metrics_ = std::make_unique<MetricsLog>(folder_, written);
    if (!open_line_.is_null()) write_measured(std::exchange(open_line_, nullptr));
    window_.begin(trainer_);
  }

  // What is there of this very run, whose weights are there too. Another result is of the run
  // before it was made longer, or of another held-out text.
  std::optional<RunResult> result_of_before() const {
    if (!trainer_.done() || measures_otherwise_) return std::nullopt;
    if (!fs::is_directory(folder_ / "model")) return std::nullopt;
    const auto finished = finished_result(folder_);
    const bool holds = finished && finished->steps == trainer_.steps() &&
                       changed_texts(trainer_.experiment(), *finished).empty();
    return holds ? finished : std::nullopt;
  }

  // Whether there is a checkpoint to go on from.
  bool resume() {
    checkpoint::remove_unfinished(folder_);
    if (fs::exists(folder_ / "checkpoints")) {
      checkpoint::remove_unfinished(folder_ / "checkpoints");
    }
    const RestoredCheckpoint restored = restore_newest(trainer_, folder_);
    for (const std::string& reason : restored.rejected) {
      tell(options_.warn, "passed over a damaged checkpoint: " + reason);
    }
    if (!restored.folder) {
      tell(options_.say, fmt::format("no checkpoint in {}: a new run begins", folder_.string()));
      return false;
    }
    saved_step_ = trainer_.steps();
    window_.restore(restored.losses);
    open_line_ = restored.open_line;
    look_at_settings_before();
    tell(options_.say,
         fmt::format(
             "resumed after step {} ({})", trainer_.steps(), counted(trainer_.tokens(), "token")));
    return true;
  }

  void look_at_settings_before() {
    if (!fs::exists(folder_ / "experiment.toml")) return;
    const Experiment& now = trainer_.experiment();
    Experiment before = read_recorded_experiment(folder_ / "experiment.toml");
    before.run.folder = now.run.folder;  // a folder may be moved
    measures_otherwise_ = config::to_toml(before.validation) != config::to_toml(now.validation);
    changed_ = changes_of_training(before, now);
    if (trainer_.done()) {
      check_unchanged();
      before.validation = now.validation;
      nothing_to_train_ = before;
    }
    // A longer budget is what one goes on for.
    before.training.tokens = now.training.tokens;
    before.training.minutes = now.training.minutes;
    const auto changes = config::differences(before, now);
    if (changes.empty()) return;
    tell(options_.warn,
         fmt::format("{}: {}",
                     nothing_to_train_ ? "nothing is left to train, so that these are not recorded"
                                       : "goes on with other settings than before",
                     fmt::join(changes, ", ")));
  }

  // The record would say of finished weights that they were trained with what came later.
  void check_unchanged() const {
    if (changed_.empty()) return;
    throw Error(fmt::format(
        "--resume: the run in {} has seen {} and ends there now: nothing would be trained with {}; "
        "raise what ends it (training.tokens, training.minutes, training.accuracy), or give the "
        "settings of before",
        folder_.string(),
        counted(trainer_.tokens(), "token"),
        fmt::join(changed_, ", ")));
  }

  static void tell(const std::function<void(const std::string&)>& listener,
                   const std::string& line) {
    if (listener) listener(line);
  }

  void step() {
    const bool log = (trainer_.steps() + 1) % config().log_every == 0;
    GateStatistics gates;
    std::optional<StepProfile> profile;
    if (trainer_.steps() + 1 == config().profile_step) profile.emplace(trainer_.device());
    window_.add(trainer_.step(log ? &gates : nullptr));
    if (profile) profile->write(folder_ / "profile.json");
    check_something_counts();
    const bool last = trainer_.done();
    const bool validate = !last && crossed(trainer_, trainer_.experiment().validation.every) &&
                          trainer_.progress().has_time_for(measurement_seconds_);
    if (log || last || validate) {
      Json line = window_.line(trainer_);
      add_gates(line, gates.shares(), prunes());
      if (validate) {
        write_measured(std::move(line));
      } else {
        metrics_->write(line);
      }
      show_progress();
    }
    // A streak of skipped steps says that something is wrong: what is due waits until it is over.
    permanent_due_ |= crossed(trainer_, config().permanent_every);
    due_ |= permanent_due_ || crossed(trainer_, config().checkpoint_every);
    if (due_ && !trainer_.last_step_skipped()) save(permanent_due_);
  }

  // With the loss of the held-out text. Where measuring it is stopped, the line is to be written
  // again by the run that goes on.
  void write_measured(Json line) {
    const double begin = trainer_.seconds();
    if (const auto loss = validation_loss()) {
      line["validation_loss"] = *loss;
    } else if (stopped()) {
      open_line_ = line;
    }
    metrics_->write(line);
    measurement_seconds_ = trainer_.seconds() - begin;
    window_.leave_out(measurement_seconds_);
  }

  void save(bool permanent) {
    const double begin = trainer_.seconds();
    const std::vector<std::string> problems = save_checkpoint(trainer_,
                                                              folder_,
                                                              {.permanent = permanent,
                                                               .losses = window_.losses(),
                                                               .open_line = open_line_,
                                                               .tokenizer = tokenizer_});
    for (const std::string& problem : problems) tell(options_.warn, problem);
    saved_step_ = trainer_.steps();
    due_ = permanent_due_ = false;
    window_.leave_out(trainer_.seconds() - begin);
  }

  // Steps without a token that counts change nothing.
  void check_something_counts() const {
    constexpr int64_t kPatientSteps = 100;
    const int64_t steps = trainer_.steps() - first_step_;  // of this process
    if (window_.has_counted() || (!trainer_.done() && steps < kPatientSteps)) return;
    const data::LoaderConfig& data = trainer_.experiment().data;
    throw Error(fmt::format(
        "data.path = {}: no token of {} counts in the loss: {}",
        data.path,
        counted(steps, "step"),
        data.answer_mark >= 0
            ? fmt::format("does data.answer_mark = {} stand in this text?", data.answer_mark)
            : "are its answers beyond the rows' ends? give a larger data.length"));
  }

  void show_progress() {
    if (!options_.progress) return;
    const Progress progress = trainer_.progress();
    const double fraction = progress.fraction();
    const double left = fraction > 0 ? trainer_.seconds() * (1 - fraction) / fraction : 0;
    options_.progress({.fraction = fraction,
                       .step = trainer_.steps(),
                       .loss = window_.mean_loss(),
                       .tokens_per_second = window_.rate(),
                       .seconds_left = left});
  }

  std::optional<double> validation_loss() {
    const ValidationConfig& validation = trainer_.experiment().validation;
    if (validation.path.empty()) return std::nullopt;
    const auto loader = held_out_loader(trainer_.experiment());
    const int64_t once = loader->rows_of_one_pass() * trainer_.experiment().data.length;
    const auto loss =
        trainer_.held_out_loss(*loader, std::min(validation.tokens, once), options_.stop);
    if (!loss && !stopped()) {
      tell(options_.warn,
           fmt::format("validation.path = {}: no token of it counts in the loss", validation.path));
    }
    return loss;
  }

  RunResult result() const {
    return {.finished = trainer_.done(),
            .steps = trainer_.steps(),
            .tokens = trainer_.tokens(),
            .skipped_steps = trainer_.skipped_steps(),
            .seconds = trainer_.seconds(),
            .loss = window_.recent_loss(),
            .validation_loss = {}};
  }

  void save_model() {
    checkpoint::FolderWriter writer(folder_ / "model");
    models::write_model(trainer_.model(), writer);
    for (const tokenizer::SavedFile& file : tokenizer_) writer.write(file.name, file.contents);
    writer.commit();
  }

  // Of a step that never came, or that was taken before the run was to record it.
  void note_missing_profile() const {
    const int64_t step = config().profile_step;
    if (step == 0 || fs::exists(folder_ / "profile.json")) return;
    const bool ended = step > trainer_.steps();
    tell(options_.warn,
         fmt::format("training.profile_step = {}: the run {} after {}; nothing was recorded",
                     step,
                     ended ? "ended" : "went on",
                     counted(ended ? trainer_.steps() : first_step_, "step")));
  }

  [[noreturn]] void diverged(const char* what) const {
    throw Diverged(fmt::format(
        "training: {} is not finite (step {}): lower optimizer.learning_rate = {} or lengthen the "
        "warm-up, then train again or go on with --resume and a larger budget",
        what,
        trainer_.steps(),
        trainer_.experiment().optimizer.learning_rate));
  }

  RunResult end() {
    RunResult done = result();
    done.finished = true;
    note_missing_profile();
    if (saved_step_ != trainer_.steps()) save(permanent_due_);
    // All that is known of these weights is that their loss or its gradient is not finite.
    if (trainer_.last_step_skipped()) diverged("the loss of the last step, or its gradient,");
    save_model();
    done.validation_loss = validation_loss();
    if (done.validation_loss && !std::isfinite(*done.validation_loss)) {
      diverged("the held-out loss after the last step");
    }
    const bool measures = !trainer_.experiment().validation.path.empty();
    if (stopped() && measures && !done.validation_loss) {  // --resume does
      done.finished = false;
      return done;
    }
    done.text = text_;
    if (measures) {
      done.held_out_text = data::TokenFile(trainer_.experiment().validation.path).fingerprint();
    }
    write_result(folder_, done);
    return done;
  }

  RunOptions options_;
  fs::path folder_;
  std::string text_;                             // its fingerprint
  std::vector<tokenizer::SavedFile> tokenizer_;  // of the text; kept beside the weights
  Trainer trainer_;
  Window window_;
  std::unique_ptr<MetricsLog> metrics_;
  int64_t first_step_ = 0, saved_step_ = 0;
  bool due_ = false, permanent_due_ = false;  // checkpoints that the last steps asked for
  double measurement_seconds_ = 0;            // of held-out text, the last time; 0: not yet
  Json open_line_ = nullptr;                  // of metrics, whose measurement was stopped
  bool measures_otherwise_ = false;           // than the command before, on held-out text
  std::vector<std::string> changed_;          // settings since then that training reads
  // Where a resumed run is at the end of its budget: its experiment.toml, with [validation] of now.
  std::optional<Experiment> nothing_to_train_;
  std::optional<RunResult> finished_;  // where nothing is left to do
};

}  // namespace

RunResult run(const Experiment& experiment, const RunOptions& options) {
  const fs::path folder = experiment.run.folder;
  // What is being written there is no run to go on with.
  if (fs::is_directory(folder)) const checkpoint::FolderLock asked(folder);
  check_folder(experiment, options.resume);
  models::check_can_be_saved(experiment.model);
  check_texts(experiment);
  check_budget(experiment);
  for (const std::string& note : notes_on_text(experiment)) {
    if (options.warn) options.warn(note);
  }
  const bool existed = fs::exists(folder);
  make_folder(folder);
  const checkpoint::FolderLock lock(folder);
  check_folder(experiment, options.resume);  // another process may just have ended
  const bool begins = fs::is_empty(folder);
  try {
    return Run(experiment, options).train();
  } catch (...) {
    if (begins) remove_begun(folder, existed);
    throw;
  }
}

}  // namespace reynard::training
