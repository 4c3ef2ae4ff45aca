#include "cli/numbers.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

namespace reynard::cli {

namespace {

// As CLI11 reads them: "0x10" counts as in C.
void read_number(const char* text, char** end, int64_t& value) {
  value = std::strtoll(text, end, 0);
}
void read_number(const char* text, char** end, uint64_t& value) {
  value = std::strtoull(text, end, 0);
}

std::string empty_error(const std::string& text) {
  return text.empty() ? "\"\" is no number" : "";
}

// NaN passes every comparison that looks for what lies outside, as CLI::Range does.
std::string number_error(const std::string& text) {
  if (text.empty()) return empty_error(text);
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value)) return fmt::format("{} is no number", text);
  return std::isfinite(value) ? "" : fmt::format("{} is not a finite number", text);
}

// Of "010": ten to whoever wrote it, eight to C.
bool has_leading_zero(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\n\v\f\r+-");
  return first != std::string::npos && text[first] == '0' && first + 1 < text.size() &&
         std::isdigit(static_cast<unsigned char>(text[first + 1])) != 0;
}

// Empty where the text is a number of this type.
template <typename Integer>
std::string whole_number_error(const std::string& text) {
  Integer value = 0;
  char* end = nullptr;
  errno = 0;
  read_number(text.c_str(), &end, value);
  if (text.empty()) return empty_error(text);
  if (end != text.c_str() + text.size()) return fmt::format("{} is no whole number", text);
  if (has_leading_zero(text)) {
    return fmt::format("{} has a leading zero; expected a whole number without one", text);
  }
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

void reject_wrong_numbers(CLI::App& app) {
  const CLI::Validator is_signed(whole_number_error<int64_t>, "");
  const CLI::Validator is_unsigned(whole_number_error<uint64_t>, "");
  const CLI::Validator is_finite(number_error, "");
  for (CLI::Option* const option : app.get_options()) {
    // As the help shows them: "INT", "UINT" or "FLOAT", with what else is asked of it behind.
    const std::string type = option->get_type_name();
    // transform() puts it before what else is asked, which would call "abc" out of its range.
    if (type.starts_with("INT")) option->transform(is_signed);
    if (type.starts_with("UINT")) option->transform(is_unsigned);
    if (type.starts_with("FLOAT")) option->transform(is_finite);
  }
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) {
    reject_wrong_numbers(*command);
  }
}

CLI::Validator above_zero() {
  return {[](const std::string& text) {
            double value = 0;
            const bool holds = CLI::detail::lexical_cast(text, value) && value > 0;
            return holds ? "" : fmt::format("{}; expected a number above 0", text);
          },
          "POSITIVE"};
}

CLI::Validator at_least_zero() {
  return {[](const std::string& text) {
            double value = 0;
            const bool holds = CLI::detail::lexical_cast(text, value) && value >= 0;
            return holds ? "" : fmt::format("{}; expected 0 or more", text);
          },
          "NONNEGATIVE"};
}

CLI::Validator between(double least, double most) {
  return {[=](const std::string& text) {
            double value = 0;
            const bool holds =
                CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return holds ? "" : fmt::format("{}; expected {} to {}", text, least, most);
          },
          fmt::format("{} to {}", least, most)};
}

}  // namespace reynard::cli
