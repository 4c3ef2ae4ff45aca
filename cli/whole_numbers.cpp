#include "cli/whole_numbers.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <system_error>

namespace reynard::cli {

namespace {

// Empty where the text is a number of this type, or none at all: CLI11 says that.
template <typename Integer>
std::string range_error(const std::string& text) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool has_wrong_sign = std::numeric_limits<Integer>::min() == 0 && text.starts_with('-');
  if (error != std::errc::result_out_of_range && !has_wrong_sign) return "";
  using Limits = std::numeric_limits<Integer>;
  return fmt::format("{} is out of range; expected a whole number of {} to {}",
                     text,
                     Limits::min(),
                     Limits::max());
}

}  // namespace

void reject_numbers_out_of_range(CLI::App& app) {
  const CLI::Validator fits_signed(range_error<int64_t>, "");
  const CLI::Validator fits_unsigned(range_error<uint64_t>, "");
  for (CLI::Option* const option : app.get_options()) {
    // As the help shows them: "INT", "UINT", or either with what else is asked of it behind.
    const std::string type = option->get_type_name();
    if (type.starts_with("INT")) option->check(fits_signed);
    if (type.starts_with("UINT")) option->check(fits_unsigned);
  }
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) {
    reject_numbers_out_of_range(*command);
  }
}

}  // namespace reynard::cli
