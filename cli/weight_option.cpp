#include "cli/weight_option.h"

#include <CLI/CLI.hpp>

namespace reynard::cli {

void add_weight_option(CLI::App& command, std::string& dtype) {
  command
      .add_option(
          "--dtype",
          dtype,
          "of the matrix products and the cache: f32, bf16, or int8 (weights of 8 bits with "
          "a scale per row, the rest bf16; CPU)")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
}

models::WeightFormat weight_format(const std::string& dtype) {
  return config::value_named<models::WeightFormat>(dtype).value_or(models::WeightFormat::kF32);
}

}  // namespace reynard::cli
