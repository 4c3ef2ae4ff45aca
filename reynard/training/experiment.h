#pragma once
// One experiment file (TOML): everything that decides the weights of a run, one struct per section.
// How files become structs is reynard/config; what a step does with them is trainer.h.

#include "reynard/config/fields.h"
#include "reynard/data/loader.h"
#include "reynard/models/crossbatch.h"
#include "reynard/models/decoder_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::training {

enum class ScheduleShape {
  kConstant,      // peak after the warm-up
  kLinear,        // straight down to the final rate
  kCosine,        // half a cosine down to the final rate
  kOneMinusSqrt,  // peak - (peak - final) sqrt(progress)
  kWSD,           // warm-up, stable, then one-minus-sqrt over the last decay_fraction
  kInverseSqrt,   // peak sqrt(warm-up / progress), at least the final rate
};
enum class OptimizerRule {
  kAdamW,
  kAdafactor,  // learning rates are relative to the weights' root mean square
};
enum class Precision {
  kAuto,  // bf16 on a GPU and where the CPU multiplies bf16 (AVX512-BF16 or AMX), else f32
  kF32,
  kBF16,  // bf16 products, f32 weights, residual, norms and gates
};
// Where the run computes; a run may go on with --resume on another device.
enum class DeviceChoice {
  kAuto,  // a GPU where there is one and this build can use it, else the CPU
  kCPU,
  kCUDA,
};
config::EnumNames<ScheduleShape> enum_names(ScheduleShape);
config::EnumNames<OptimizerRule> enum_names(OptimizerRule);
config::EnumNames<Precision> enum_names(Precision);
config::EnumNames<DeviceChoice> enum_names(DeviceChoice);

struct RunConfig {
  std::string folder = "runs/experiment";
  int64_t seed = 0;        // of the initial weights; the order of the data has its own, data.seed
  std::string start_from;  // model folder; empty: random weights

  static void fields(auto& self, auto&& field) {
    field("folder", self.folder, "where checkpoints, metrics and the final model are written");
    field("seed", self.seed, "seed of the initial weights", config::non_negative);
    field("start_from",
          self.start_from,
          "model or run folder whose weights the run starts from; empty: random ones");
  }
};

struct OptimizerConfig {
  OptimizerRule rule = OptimizerRule::kAdamW;
  double learning_rate = 2e-3;  // peak
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices and embeddings; norms and biases have none
  double clip_norm = 1;       // global norm of the gradient of a step; 0: off

  static void fields(auto& self, auto&& field) {
    field("rule",
          self.rule,
          "adamw, or adafactor: learning rates relative to the weights, factored second moments");
    field("learning_rate", self.learning_rate, "peak learning rate", config::positive);
    field("beta1", self.beta1, "decay of the first moment", config::fraction);
    field("beta2", self.beta2, "decay of the second moment (adamw)", config::fraction);
    field("epsilon",
          self.epsilon,
          "added to the root of the second moment (adamw)",
          config::positive);
    field("weight_decay",
          self.weight_decay,
          "decoupled weight decay of matrices and embeddings; norms and biases have none",
          config::non_negative);
    field("clip_norm",
          self.clip_norm,
          "largest global norm of a step's gradient; 0: no clipping",
          config::non_negative);
  }
  void check(config::Problems& problems, const std::string& path) const;
};

struct ScheduleConfig {
  ScheduleShape shape = ScheduleShape::kCosine;
  int64_t warmup_tokens = 0;   // linear rise from 0, in tokens ...
  double warmup_fraction = 0;  // ... or as a share of the budget (the only way with a time budget)
  double decay_fraction = 0.2;
  double final_fraction = 0;  // final rate as a share of the peak

  static void fields(auto& self, auto&& field) {
    field("shape", self.shape, "course of the learning rate after the warm-up");
    field("warmup_tokens",
          self.warmup_tokens,
          "tokens over which the rate rises from 0 to the peak",
          config::non_negative);
    field("warmup_fraction",
          self.warmup_fraction,
          "the same as a share of the whole budget",
          config::fraction);
    field("decay_fraction",
          self.decay_fraction,
          "share of the budget over which wsd decays",
          config::fraction);
    field("final_fraction",
          self.final_fraction,
          "final learning rate as a share of the peak",
          config::fraction);
  }
};

struct TrainingConfig {
  int64_t tokens = 0;        // budget in input tokens; 0: only the time decides
  double minutes = 0;        // budget in wall time; 0: only the tokens decide
  double accuracy = 0;       // of a step, that ends the run before its budget; 0: nothing does
  int64_t accumulation = 1;  // micro-batches per step
  DeviceChoice device = DeviceChoice::kAuto;
  Precision precision = Precision::kAuto;
  bool checkpoint_activations = false;
  int64_t loss_chunk_tokens = 2048;
  int64_t profile_step = 0;        // recorded as profile.json in the run folder; 0: none
  int64_t log_every = 10;          // steps
  int64_t checkpoint_every = 0;    // tokens; 0: at the end and on Ctrl-C only
  int64_t keep_checkpoints = 2;    // newest kept
  int64_t permanent_every = 0;     // tokens; 0: none is permanent
  int64_t max_skipped_steps = 10;  // in a row

  static void fields(auto& self, auto&& field) {
    field("tokens",
          self.tokens,
          "budget in input tokens; 0: minutes decides; with both, what ends first",
          config::non_negative);
    field("minutes",
          self.minutes,
          "budget in minutes of wall time; the schedule follows the clock; 0: tokens decides",
          config::non_negative);
    field("accuracy",
          self.accuracy,
          "share of a step's tokens that is predicted when the run ends before its budget; with "
          "crossbatch.order = \"by_accuracy\" once the last of crossbatch.documents is in use; 0: "
          "off",
          config::fraction);
    field("accumulation",
          self.accumulation,
          "micro-batches (data.batch_size rows of data.length) per optimizer step",
          config::positive);
    field("device",
          self.device,
          "cpu, cuda (one NVIDIA GPU) or auto: a GPU where there is one; also --device");
    field("precision",
          self.precision,
          "matrix products in f32 or bf16; auto: what the device is fast at");
    field("checkpoint_activations",
          self.checkpoint_activations,
          "recompute each block in the backward pass: less memory, a third more work");
    field("loss_chunk_tokens",
          self.loss_chunk_tokens,
          "tokens whose logits exist at a time",
          config::positive);
    field("profile_step",
          self.profile_step,
          "step recorded as a Chrome trace, profile.json in the run folder; 0: none",
          config::non_negative);
    field("log_every", self.log_every, "steps between lines of metrics", config::positive);
    field("checkpoint_every",
          self.checkpoint_every,
          "tokens between checkpoints; 0: only at the end and on Ctrl-C",
          config::non_negative);
    field("keep_checkpoints",
          self.keep_checkpoints,
          "newest checkpoints that are kept",
          config::positive);
    field("permanent_every",
          self.permanent_every,
          "tokens between checkpoints that are never removed; 0: none",
          config::non_negative);
    field("max_skipped_steps",
          self.max_skipped_steps,
          "steps in a row with a loss or gradient that is not finite after which the run stops",
          config::positive);
  }
};

// How the number of documents that a context sees keys of changes over a run.
enum class DocumentsOrder {
  kInTurn,      // the next of the list after each of `steps`
  kDrawn,       // one of the list, drawn in every step
  kByAccuracy,  // the next of the list after a step that predicted `accuracy` of its tokens
};
enum class CrossbatchContexts {
  kAll,
  kLast,  // of each row
};
config::EnumNames<DocumentsOrder> enum_names(DocumentsOrder);
config::EnumNames<CrossbatchContexts> enum_names(CrossbatchContexts);

// Training of a memory (docs/memory.md): rows are cut into contexts that see each other's keys.
struct CrossbatchConfig {
  int64_t contexts = 0;  // of a row, w + 1; 0: off
  models::CrossbatchRule rule = models::CrossbatchRule::kRows;
  std::vector<int64_t> documents = {1};
  DocumentsOrder order = DocumentsOrder::kInTurn;
  std::vector<int64_t> steps;
  double accuracy = 0.98;
  CrossbatchContexts loss = CrossbatchContexts::kAll;
  bool stop_gradient = false;
  int64_t memory = 0;  // tokens per row; 0: none
  int64_t memory_from_step = 0;
  std::vector<int64_t> memory_seen;  // drawn for each row; empty: all of it
  CrossbatchContexts memory_readers = CrossbatchContexts::kAll;
  bool memory_across_documents = false;

  static void fields(auto& self, auto&& field) {
    field("contexts",
          self.contexts,
          "contexts that a row of data.length tokens is cut into: w previous ones and the current; "
          "0: off",
          config::non_negative);
    field("rule", self.rule, "which contexts see which: those before in d rows, or LongLLaMA's");
    field("documents",
          self.documents,
          "d: documents whose keys a context sees, its own included; a list for `order`",
          config::positive);
    field("order", self.order, "how a list of documents is used");
    field("steps",
          self.steps,
          "steps after which the next of `documents` is used, one fewer than those",
          config::positive);
    field("accuracy",
          self.accuracy,
          "share of a step's tokens that is predicted when the next of `documents` is due",
          config::fraction);
    field("loss", self.loss, "loss of all contexts, or of the last of each row");
    field("stop_gradient", self.stop_gradient, "no gradient through keys of other contexts");
    field("memory",
          self.memory,
          "tokens per row that are remembered between steps, without gradients; 0: none",
          config::non_negative);
    field("memory_from_step",
          self.memory_from_step,
          "step from which there is such a memory",
          config::non_negative);
    field(
        "memory_seen",
        self.memory_seen,
        "newest tokens of it that a row sees, one number of the list drawn for each row and step; "
        "empty: all",
        config::non_negative);
    field("memory_readers",
          self.memory_readers,
          "contexts that read it: all, or the last of each row; others see their row only");
    field("memory_across_documents",
          self.memory_across_documents,
          "a row's memory is kept when its document ends");
  }
};

struct ValidationConfig {
  std::string path;         // token file; empty: none
  int64_t tokens = 131072;  // measured each time
  int64_t every = 0;        // tokens of training between measurements; 0: at the end only

  static void fields(auto& self, auto&& field) {
    field("path", self.path, "token file of held-out text; empty: none");
    field("tokens",
          self.tokens,
          "held-out tokens that are measured; of a shorter text the whole rows that it has",
          config::positive);
    field("every",
          self.every,
          "tokens of training between measurements; 0: only at the end",
          config::non_negative);
  }
};

struct Experiment {
  RunConfig run;
  models::DecoderConfig model;
  CrossbatchConfig crossbatch;
  data::LoaderConfig data;
  ValidationConfig validation;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  TrainingConfig training;

  static void fields(auto& self, auto&& field) {
    field("run", self.run, "the run folder and its seed");
    field("model", self.model, "the decoder");
    field("crossbatch", self.crossbatch, "training of a memory");
    field("data", self.data, "training text");
    field("validation", self.validation, "held-out text");
    field("optimizer", self.optimizer, "AdamW or Adafactor");
    field("schedule", self.schedule, "learning rate over the run");
    field("training", self.training, "budget, precision, checkpoints");
  }
  // Rules between sections: a budget exists, warm-up fits the budget, ...; and no key is set that
  // nothing reads (unread_keys.h).
  void check(config::Problems& problems, const std::string& path) const;
  // These rules without the last.
  void check_choices(config::Problems& problems, const std::string& path) const;

  // Those that come again in the next step (data.overlap) count there.
  int64_t tokens_per_step() const {
    return data.batch_size * data.new_tokens() * training.accumulation;
  }
};

// Documents whose keys a context sees in a step (from 0), unless they go by accuracy.
int64_t crossbatch_documents(const Experiment& experiment, int64_t step);

// Tokens of its memory that row `row` of all micro-batches sees in a step (from 0).
int64_t crossbatch_memory_seen(const Experiment& experiment, int64_t step, int64_t row);

// The device that training runs on. Throws reynard::Error for cuda where there is none.
at::Device chosen_device(DeviceChoice choice);
// The dtype of the matrix products on that device: kBFloat16 or kFloat.
at::ScalarType compute_dtype(Precision precision, at::Device device);

}  // namespace reynard::training
