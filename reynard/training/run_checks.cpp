#include "reynard/training/run_checks.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/config/config.h"
#include "reynard/data/token_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/training/unread_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace reynard::training {

namespace {

namespace fs = std::filesystem;

// Settings that cannot change when a run goes on: what was trained would not fit to what follows.
// The others may (a longer budget, another rate); Run::resume names them.
void check_same_run(const Experiment& given, const fs::path& folder) {
  if (!fs::exists(folder / "experiment.toml")) return;
  const Experiment before = read_recorded_experiment(folder / "experiment.toml");
  const Experiment now = without_unread_keys(given);
  const auto require = [&](bool same, const char* what) {
    if (same) return;
    throw Error(fmt::format(
        "--resume: {} differs from that of the run in {} (its experiment.toml); choose another "
        "run.folder or undo the change",
        what,
        folder.string()));
  };
  require(config::to_toml(now.model) == config::to_toml(before.model), "section [model]");
  require(config::to_toml(now.crossbatch) == config::to_toml(before.crossbatch),
          "section [crossbatch]");
  require(config::to_toml(now.data) == config::to_toml(before.data), "section [data]");
  require(now.run.seed == before.run.seed, "run.seed");
  require(now.run.start_from == before.run.start_from, "run.start_from");
  require(now.optimizer.rule == before.optimizer.rule, "optimizer.rule");
  require(now.training.accumulation == before.training.accumulation, "training.accumulation");
}

// Without a checkpoint a run begins anew, with whatever settings: only in place of one that ended
// before its first.
void check_overwritable(const fs::path& folder) {
  if (fs::exists(folder / "model")) {
    throw Error(fmt::format(
        "--resume: {} holds a trained model and no checkpoint to go on from; choose another "
        "run.folder, and --run.start_from={} to begin with its weights",
        folder.string(),
        (folder / "model").string()));
  }
  if (fs::exists(folder / "result.json")) {
    throw Error(
        fmt::format("--resume: {} holds the result of a finished run, and neither its model nor a "
                    "checkpoint to go on from; choose another run.folder, or remove this one",
                    folder.string()));
  }
  if (fs::exists(folder / "run.json")) return;
  // A run that was killed before it had a name leaves temporary files.
  const bool is_begun =
      std::all_of(fs::directory_iterator(folder), fs::directory_iterator(), [](const auto& entry) {
        return entry.path().filename().string().starts_with(checkpoint::kTemporaryPrefix);
      });
  if (is_begun) return;
  throw Error(
      fmt::format("--resume: {} is not the folder of a run: it has no run.json; choose "
                  "another run.folder",
                  folder.string()));
}

// A model that names other tokens than its text has would begin and end with ordinary ones.
//   text: "data.path = train.tokens"
void check_special_tokens(const models::DecoderConfig& model,
                          const data::TokenFileHeader& header,
                          const std::string& text) {
  const auto check = [&](const char* key, std::optional<int64_t> ours, int64_t theirs) {
    if (!ours || *ours == theirs) return;
    throw Error(fmt::format(
        "model.{} = {}: in {} it is {}; set --model.{}={}", key, *ours, text, theirs, key, theirs));
  };
  check("bos_token_id", model.bos_token_id, header.bos);
  check("eos_token_id", model.eos_token_id, header.eos);
}

// The model whose weights are taken, with those settings of ours that say nothing of what weights
// compute, or that their shapes show.
models::DecoderConfig with_what_may_differ(models::DecoderConfig theirs,
                                           const models::DecoderConfig& ours) {
  models::AttentionMixerConfig& attention = theirs.attention;
  const models::AttentionMixerConfig& own = ours.attention;
  theirs.intermediate_size = ours.intermediate_size, theirs.hidden_ratio = ours.hidden_ratio;
  attention.num_kv_heads = own.num_kv_heads, attention.head_dim = own.head_dim;
  theirs.initializer_range = ours.initializer_range;
  attention.forget_bias_init = own.forget_bias_init;
  attention.decay_time_min = own.decay_time_min, attention.decay_time_max = own.decay_time_max;
  attention.temperature_init = own.temperature_init;
  attention.log_pruning_tolerance = own.log_pruning_tolerance;
  attention.pruning_rule = own.pruning_rule;
  theirs.bos_token_id = ours.bos_token_id, theirs.eos_token_id = ours.eos_token_id;
  if (!attention.rope && !own.rope) {
    attention.rope_base = own.rope_base, attention.rope_scaling = own.rope_scaling;
  }
  if (attention.qk_norm == models::QKNorm::kNone) attention.qk_norm_eps = own.qk_norm_eps;
  if (!theirs.has_memory()) {
    theirs.memory = ours.memory;
    if (ours.has_memory()) theirs.mixer = ours.mixer;
  }
  return theirs;
}

}  // namespace

void check_folder(const Experiment& experiment, bool resume) {
  const fs::path folder = experiment.run.folder;
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    throw Error(fmt::format("run.folder = {}: is not a folder", folder.string()));
  }
  const bool used = fs::exists(folder) && !fs::is_empty(folder);
  if (used && !resume) {
    throw Error(fmt::format(
        "run.folder = {}: is not empty; add --resume to go on with it, or choose another folder "
        "with --run.folder=...",
        folder.string()));
  }
  if (!used) return;
  if (!checkpoint::list_checkpoints(folder).empty()) {
    check_same_run(experiment, folder);
  } else {
    check_overwritable(folder);
  }
}

std::vector<std::string> changes_of_training(const Experiment& before, const Experiment& now) {
  Experiment after = before;
  after.optimizer = now.optimizer;
  after.schedule = now.schedule;
  after.training.tokens = now.training.tokens;
  after.training.minutes = now.training.minutes;
  after.training.accuracy = now.training.accuracy;
  after.training.precision = now.training.precision;
  return config::differences(before, after);
}

void make_folder(const fs::path& folder) {
  const auto refuse = [&](const char* what, const std::error_code& reason) {
    throw Error(fmt::format("run.folder = {}: {}: {}; choose another with --run.folder=...",
                            folder.string(),
                            what,
                            reason.message()));
  };
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse("cannot be made", error);
  if (::access(folder.c_str(), W_OK) != 0) {
    refuse("cannot be written", std::error_code(errno, std::generic_category()));
  }
}

std::unique_ptr<data::Loader> training_loader(const Experiment& experiment) {
  return data::make_loader(experiment.data,
                           experiment.data.batch_size * experiment.training.accumulation);
}

std::unique_ptr<data::Loader> held_out_loader(const Experiment& experiment) {
  data::LoaderConfig config = experiment.data;
  config.path = experiment.validation.path;
  config.repeat_fraction = 0;
  config.overlap = 0;
  config.seed = 0;
  return data::make_loader(config, /*num_walks=*/1);
}

void check_texts(const Experiment& experiment) {
  // Returns the name of the tokenizer.
  const auto check = [&](const char* key, const data::TokenFile& file) {
    const data::TokenFileHeader& header = file.header();
    const std::string text = fmt::format("{} = {}", key, file.path().string());
    if (header.vocab_size > experiment.model.vocab_size) {
      throw Error(fmt::format("{}: has a vocabulary of {}; model.vocab_size = {} is too small",
                              text,
                              header.vocab_size,
                              experiment.model.vocab_size));
    }
    check_special_tokens(experiment.model, header, text);
    return header.tokenizer;
  };
  const std::string tokenizer = check("data.path", training_loader(experiment)->file());
  if (experiment.validation.path.empty()) return;
  if (check("validation.path", held_out_loader(experiment)->file()) == tokenizer) return;
  throw Error(
      fmt::format("validation.path = {}: was made with another tokenizer than data.path = {}",
                  experiment.validation.path,
                  experiment.data.path));
}

void check_budget(const Experiment& experiment) {
  const TrainingConfig& training = experiment.training;
  if (training.tokens == 0 || training.tokens >= experiment.tokens_per_step()) return;
  throw Error(
      fmt::format("training.tokens = {}; must be at least the {} tokens of one step "
                  "(data.batch_size = {}, data.length = {}, training.accumulation = {}); raise it "
                  "or lower those",
                  training.tokens,
                  experiment.tokens_per_step(),
                  experiment.data.batch_size,
                  experiment.data.length,
                  training.accumulation));
}

std::vector<std::string> notes_on_text(const Experiment& experiment) {
  const data::LoaderConfig& data = experiment.data;
  const bool goes_on =
      data.mode == data::LoaderMode::kPacked || data.mode == data::LoaderMode::kOrdered;
  const data::TokenFile file(data.path);
  std::vector<std::string> notes;
  if (goes_on && data.length > file.num_tokens()) {
    notes.push_back(fmt::format(
        "data.length = {}: data.path = {} has {} in all, which every row then holds again and "
        "again; a shorter data.length wastes nothing",
        data.length,
        data.path,
        counted(file.num_tokens(), "token")));
  }
  const int64_t rows = data.batch_size * experiment.training.accumulation;
  if (data.mode == data::LoaderMode::kOrdered && rows > file.num_documents()) {
    notes.push_back(fmt::format(
        "data.mode = \"ordered\": a step has {} rows, which walk through documents of their own; "
        "data.path = {} has {}, so that rows repeat each other; fewer rows (data.batch_size = {}, "
        "training.accumulation = {}) waste nothing",
        rows,
        data.path,
        counted(file.num_documents(), "document"),
        data.batch_size,
        experiment.training.accumulation));
  }
  return notes;
}

std::string note_on_first_weights(const Experiment& experiment) {
  const std::string& start = experiment.run.start_from;
  if (start.empty()) return "";
  Experiment theirs = experiment;
  theirs.model =
      with_what_may_differ(models::load_config(models::model_folder(start)), experiment.model);
  const auto changes = config::differences(theirs, experiment);
  if (changes.empty()) return "";
  return fmt::format(
      "run.start_from = {}: its weights are of other settings than this model's: {}; where that is "
      "not meant, give those of the weights",
      start,
      fmt::join(changes, ", "));
}

}  // namespace reynard::training
