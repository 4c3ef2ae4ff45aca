#include "cli/pruning_note.h"

#include "cli/message.h"

#include <fmt/format.h>

namespace reynard::cli {

std::string pruning_note(const models::DecoderConfig& config) {
  const models::AttentionMixerConfig& attention = config.attention;
  const bool gated = attention.forget_gate != models::ForgetGate::kNone;
  if (config.mixer != "attention" || !gated || attention.log_pruning_tolerance == 0) return "";
  return fmt::format(
      "pruning: {} rule, at most e^{:g} of a query's attention, logits bounded by {}",
      config::name_of(attention.pruning_rule),
      attention.log_pruning_tolerance,
      attention.qk_norm == models::QKNorm::kNone ? "measured norms" : "QK-norm weights");
}

void print_pruning_note(const models::DecoderConfig& config) {
  const std::string note = pruning_note(config);
  if (!note.empty()) print_message("{}\n", note);
}

}  // namespace reynard::cli
