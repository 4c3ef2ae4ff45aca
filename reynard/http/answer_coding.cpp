#include "reynard/http/answer_coding.h"

#include "reynard/http/request_head.h"

#include <algorithm>
#include <cstddef>

namespace reynard::http {

namespace {

constexpr std::string_view kName = "accept-encoding";

// "q=0.5" and the like; what is no number above 0 forbids.
bool has_weight(std::string_view parameter) {
  const std::string_view name = trimmed(parameter.substr(0, parameter.find('=')));
  if (!is_word(name, "q") || parameter.find('=') == std::string_view::npos) return false;
  const std::string_view value = trimmed(parameter.substr(parameter.find('=') + 1));
  return value.find_first_not_of("0123456789.") == std::string_view::npos &&
         value.find_first_of("123456789") != std::string_view::npos;
}

// The library's name of a coding such as "gzip;q=0.5"; empty: it has none, or the client forbids
// it. "x-gzip" is gzip (RFC 9110, section 8.4.1.3).
std::string_view known_coding(std::string_view coding) {
  const std::size_t end = std::min(coding.find(';'), coding.size());
  const std::string_view name = trimmed(coding.substr(0, end));
  if (end < coding.size() && !has_weight(coding.substr(end + 1))) return {};
  if (is_word(name, "gzip") || is_word(name, "x-gzip")) return "gzip";
  return is_word(name, "br") ? "br" : std::string_view();
}

std::string without_field(std::string_view head) {
  std::string kept;
  while (!head.empty()) {
    const std::size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + 2, head.size()));
    if (is_word(line.substr(0, line.find(':')), kName)) continue;
    if (!kept.empty()) kept += "\r\n";
    kept += line;
  }
  return kept;
}

}  // namespace

std::optional<std::string> with_known_codings(std::string_view head) {
  if (values_of(head, kName).empty()) return {};
  std::string known;
  for (const std::string_view coding : items_of(head, kName)) {
    const std::string_view name = known_coding(coding);
    if (name.empty()) continue;
    if (!known.empty()) known += ", ";
    known += name;
  }
  std::string kept = without_field(head);
  if (!known.empty()) kept += "\r\nAccept-Encoding: " + known;
  return kept;
}

}  // namespace reynard::http
