#pragma once
// The configuration of a model that a command is given, without its weights.

#include "reynard/models/decoder_config.h"

#include <string>

namespace reynard::cli {

// model: a model folder, a run folder, or an experiment .toml, of which the section [model] is
// read. Throws reynard::Error for anything else.
models::DecoderConfig read_model_config(const std::string& model);

}  // namespace reynard::cli
