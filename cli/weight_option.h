#pragma once
// --dtype of the commands that only read a model.

#include "reynard/models/pretrained.h"

#include <string>

namespace CLI {
class App;
}

namespace reynard::cli {

void add_weight_option(CLI::App& command, std::string& dtype);
models::WeightFormat weight_format(const std::string& dtype);

}  // namespace reynard::cli
