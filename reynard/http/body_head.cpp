#include "reynard/http/body_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

namespace reynard::http {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// The value of the first field of this name, which is in lower case.
std::optional<std::string_view> field_of(std::string_view head, std::string_view name) {
  for (std::size_t at = head.find('\n'); at != std::string_view::npos; at = head.find('\n', at)) {
    std::string_view line = head.substr(++at);
    line = line.substr(0, line.find('\n'));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    if (std::ranges::equal(line.substr(0, colon), name, {}, lower)) {
      return trimmed(line.substr(colon + 1));
    }
  }
  return {};
}

bool has_body(std::string_view method) {
  constexpr std::array<std::string_view, 3> kMethods = {"POST", "PUT", "PATCH"};
  return std::ranges::find(kMethods, method) != kMethods.end();
}

}  // namespace

std::optional<Refusal> refused_body(std::string_view head, int64_t max_body_bytes) {
  const auto length = field_of(head, "content-length");
  if (length) {
    uint64_t bytes = 0;
    const auto [end, error] =
        std::from_chars(length->data(), length->data() + length->size(), bytes);
    const bool is_number = !length->empty() && end == length->data() + length->size();
    if (!is_number) return Refusal{400, "Bad Request", "Content-Length is not a number of bytes"};
    if (error == std::errc::result_out_of_range || bytes > static_cast<uint64_t>(max_body_bytes)) {
      return Refusal{413,
                     "Payload Too Large",
                     fmt::format("the body is too large; it may have {} bytes", max_body_bytes)};
    }
  } else if (has_body(head.substr(0, head.find(' '))) && !field_of(head, "transfer-encoding")) {
    return Refusal{411, "Length Required", "the request has no body, or does not say its length"};
  }
  // Unpacked, a body within the limit may be a thousand times as long.
  const auto encoding = field_of(head, "content-encoding");
  if (encoding && !encoding->empty() && *encoding != "identity") {
    return Refusal{
        415, "Unsupported Media Type", "Content-Encoding is not supported; send the body as it is"};
  }
  return {};
}

}  // namespace reynard::http
