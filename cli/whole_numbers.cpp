#include "cli/whole_numbers.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

namespace reynard::cli {

namespace {

// As CLI11 reads them: "0x10" and "010" count as in C.
void read_number(const char* text, char** end, int64_t& value) {
  value = std::strtoll(text, end, 0);
}
void read_number(const char* text, char** end, uint64_t& value) {
  value = std::strtoull(text, end, 0);
}

// Empty where the text is a number of this type, or none at all: CLI11 says that.
template <typename Integer>
std::string range_error(const std::string& text) {
  Integer value = 0;
  char* end = nullptr;
  errno = 0;
  read_number(text.c_str(), &end, value);
  if (text.empty() || end != text.c_str() + text.size()) return "";
  using Limits = std::numeric_limits<Integer>;
  const bool has_wrong_sign =
      Limits::min() == 0 && value != 0 && text.find('-') != std::string::npos;
  if (errno != ERANGE && !has_wrong_sign) return "";
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
