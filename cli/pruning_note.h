#pragma once
// What a command says about pruning before it runs a model that prunes.

#include "reynard/models/decoder_config.h"

#include <string>

namespace reynard::cli {

// "pruning: tight rule, at most e^-10 of a query's attention, logits bounded by QK-norm weights";
// empty where the model does not prune.
std::string pruning_note(const models::DecoderConfig& config);

// The note as a line on stderr, if there is one.
void print_pruning_note(const models::DecoderConfig& config);

}  // namespace reynard::cli
