#include "reynard/evaluation/named.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace reynard::evaluation {

void fail_unknown_task(std::string_view op,
                       std::string_view name,
                       std::span<const std::string_view> known) {
  throw Error(
      fmt::format("{}: no task is called '{}'; known: {}", op, name, fmt::join(known, ", ")));
}

}  // namespace reynard::evaluation
