#include "reynard/training/unread_keys.h"

#include "reynard/config/config.h"

namespace reynard::training {

namespace {

// Each visit calls unread(key, value, default, what is needed) for the keys that nothing reads.
void visit_model(auto& model, auto&& unread) {
  const models::DecoderConfig unset;
  auto& attention = model.attention;
  if (!attention.rope_scaling) {
    unread("model.attention.rope_scaling.type",
           attention.rope_scaling,
           unset.attention.rope_scaling,
           "must name the scaling that the other keys describe");
  }
  if (attention.forget_gate == models::ForgetGate::kNone) {
    unread("model.attention.log_pruning_tolerance",
           attention.log_pruning_tolerance,
           unset.attention.log_pruning_tolerance,
           "must be 0 with forget_gate = \"none\": only what gates forget can be pruned");
    unread("model.attention.pruning_rule",
           attention.pruning_rule,
           unset.attention.pruning_rule,
           "needs a forget_gate: only what gates forget can be pruned");
  }
  if (!attention.rope) {
    unread("model.attention.rope_base",
           attention.rope_base,
           unset.attention.rope_base,
           "needs model.attention.rope = true");
  }
  if (attention.qk_norm == models::QKNorm::kNone) {
    unread("model.attention.qk_norm_eps",
           attention.qk_norm_eps,
           unset.attention.qk_norm_eps,
           "needs model.attention.qk_norm");
  }
  if (model.has_memory()) return;
  auto& memory = model.memory;
  const char* const needed = "needs model.mixer = \"memory_attention\"";
  unread("model.memory.window", memory.window, unset.memory.window, needed);
  unread("model.memory.last_context", memory.last_context, unset.memory.last_context, needed);
  unread("model.memory.positions", memory.positions, unset.memory.positions, needed);
  unread("model.memory.top_k", memory.top_k, unset.memory.top_k, needed);
  unread("model.memory.capacity", memory.capacity, unset.memory.capacity, needed);
  unread("model.memory.merge", memory.merge, unset.memory.merge, needed);
  unread("model.memory.decay", memory.decay, unset.memory.decay, needed);
}

void visit_crossbatch(auto& cross, auto&& unread) {
  const CrossbatchConfig unset;
  if (cross.contexts == 0) {
    const char* const needed = "needs crossbatch.contexts, at least 1";
    unread("crossbatch.rule", cross.rule, unset.rule, needed);
    unread("crossbatch.documents", cross.documents, unset.documents, needed);
    unread("crossbatch.order", cross.order, unset.order, needed);
    unread("crossbatch.steps", cross.steps, unset.steps, needed);
    unread("crossbatch.accuracy", cross.accuracy, unset.accuracy, needed);
    unread("crossbatch.loss", cross.loss, unset.loss, needed);
    unread("crossbatch.stop_gradient", cross.stop_gradient, unset.stop_gradient, needed);
    unread("crossbatch.memory", cross.memory, unset.memory, needed);
  } else if (cross.order != DocumentsOrder::kByAccuracy) {
    unread("crossbatch.accuracy",
           cross.accuracy,
           unset.accuracy,
           "needs crossbatch.order = \"by_accuracy\"");
  }
  if (cross.memory > 0) return;
  const char* const needed = "needs crossbatch.memory above 0";
  unread("crossbatch.memory_seen", cross.memory_seen, unset.memory_seen, needed);
  unread("crossbatch.memory_from_step", cross.memory_from_step, unset.memory_from_step, needed);
  unread("crossbatch.memory_across_documents",
         cross.memory_across_documents,
         unset.memory_across_documents,
         needed);
  unread("crossbatch.memory_readers", cross.memory_readers, unset.memory_readers, needed);
}

void visit_unread(auto& experiment, auto&& unread) {
  const Experiment unset;
  if (experiment.optimizer.rule != OptimizerRule::kAdamW) {
    const char* const needed = "needs optimizer.rule = \"adamw\"";
    unread("optimizer.beta2", experiment.optimizer.beta2, unset.optimizer.beta2, needed);
    unread("optimizer.epsilon", experiment.optimizer.epsilon, unset.optimizer.epsilon, needed);
  }
  if (experiment.schedule.shape != ScheduleShape::kWSD) {
    unread("schedule.decay_fraction",
           experiment.schedule.decay_fraction,
           unset.schedule.decay_fraction,
           "needs schedule.shape = \"wsd\"");
  }
  if (experiment.schedule.shape == ScheduleShape::kConstant) {
    unread("schedule.final_fraction",
           experiment.schedule.final_fraction,
           unset.schedule.final_fraction,
           "needs a schedule.shape that falls, not \"constant\"");
  }
  if (experiment.validation.path.empty()) {
    unread("validation.tokens",
           experiment.validation.tokens,
           unset.validation.tokens,
           "needs validation.path, the held-out text to measure");
  }
  if (experiment.data.repeat_fraction == 0) {
    unread("data.repeat_min_length",
           experiment.data.repeat_min_length,
           unset.data.repeat_min_length,
           "needs data.repeat_fraction above 0");
  }
  if (experiment.data.mode != data::LoaderMode::kPadded) {
    unread("data.random_padding",
           experiment.data.random_padding,
           unset.data.random_padding,
           "needs data.mode = \"padded\"");
  }
  visit_crossbatch(experiment.crossbatch, unread);
  visit_model(experiment.model, unread);
}

struct Recorded : Experiment {
  void check(config::Problems& /*problems*/, const std::string& /*path*/) const {}
};

struct Variant : Experiment {
  void check(config::Problems& problems, const std::string& path) const {
    check_choices(problems, path);
  }
};

}  // namespace

std::vector<UnreadKey> unread_keys(const Experiment& experiment) {
  std::vector<UnreadKey> keys;
  visit_unread(experiment,
               [&](const char* key, const auto& value, const auto& unset, const char* needed) {
                 if (value != unset) keys.push_back({key, needed});
               });
  return keys;
}

Experiment without_unread_keys(Experiment experiment) {
  visit_unread(experiment,
               [](const char* /*key*/, auto& value, const auto& unset, const char* /*needed*/) {
                 value = unset;
               });
  return experiment;
}

Experiment read_recorded_experiment(const std::filesystem::path& file) {
  return without_unread_keys(config::read_toml<Recorded>(file));
}

Experiment read_variant(const std::filesystem::path& file, std::span<const std::string> overrides) {
  return config::read_toml<Variant>(file, overrides);
}

}  // namespace reynard::training
