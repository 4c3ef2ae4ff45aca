#include "reynard/http/body_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <vector>

namespace reynard::http {

namespace {

// Whether its lines end in CR LF, and those behind the first are a name and a value each.
bool is_well_formed(std::string_view head) {
  bool first = true;
  for (std::size_t at = 0; at <= head.size(); first = false) {
    const std::size_t end = std::min(head.find("\r\n", at), head.size());
    const std::string_view line = head.substr(at, end - at);
    at = end + 2;
    const bool begins_blank = line.empty() || line.front() == ' ' || line.front() == '\t';
    constexpr std::string_view kForbidden("\r\n\0", 3);
    if (begins_blank || line.find_first_of(kForbidden) != std::string_view::npos) return false;
    const std::size_t colon = line.find(':');
    const bool is_field = colon != std::string_view::npos && is_token(line.substr(0, colon));
    if (!first && !is_field) return false;
  }
  return true;
}

// What the fields of a head say of its body: the values of all fields of a name.
struct BodyFields {
  std::vector<std::string_view> lengths, transfers, codings;

  explicit BodyFields(std::string_view head)
      : lengths(values_of(head, "content-length")),
        transfers(values_of(head, "transfer-encoding")),
        codings(values_of(head, "content-encoding")) {}
};

bool has_body(std::string_view method) {
  constexpr std::array<std::string_view, 3> kMethods = {"POST", "PUT", "PATCH"};
  return std::ranges::find(kMethods, method) != kMethods.end();
}

// Larger than any that fits: the largest. Nothing: not a number.
std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (text.empty() || end != last) return {};
  return error == std::errc::result_out_of_range ? UINT64_MAX : number;
}

Refusal bad(std::string message) {
  return {400, "Bad Request", std::move(message)};
}

std::optional<Refusal> refused_length(const BodyFields& fields,
                                      std::string_view method,
                                      int64_t max_body_bytes) {
  if (fields.lengths.size() + fields.transfers.size() > 1) {
    return bad("the length of the body is given more than once");
  }
  if (!fields.transfers.empty()) {
    if (!has_body(method)) return bad("a request of this method has no body here");
    if (is_word(fields.transfers.front(), "chunked")) return {};
    return Refusal{501, "Not Implemented", "Transfer-Encoding may only be chunked"};
  }
  if (fields.lengths.empty()) {
    if (!has_body(method)) return {};
    return Refusal{411, "Length Required", "the request has no body, or does not say its length"};
  }
  const std::optional<uint64_t> bytes = number_of(fields.lengths.front());
  if (!bytes) return bad("Content-Length is not a number of bytes");
  if (*bytes > static_cast<uint64_t>(max_body_bytes)) {
    return Refusal{413,
                   "Payload Too Large",
                   fmt::format("the body is too large; it may have {} bytes", max_body_bytes)};
  }
  if (*bytes > 0 && !has_body(method)) return bad("a request of this method has no body here");
  return {};
}

}  // namespace

std::optional<Refusal> refused_body(std::string_view head, int64_t max_body_bytes) {
  if (!is_well_formed(head)) return bad("a line of the request's head is malformed");
  const BodyFields fields(head);
  // Unpacked, a body within the limit may be a thousand times as long.
  const auto is_plain = [](std::string_view coding) {
    return coding.empty() || is_word(coding, "identity");
  };
  if (!std::ranges::all_of(fields.codings, is_plain)) {
    return Refusal{
        415, "Unsupported Media Type", "Content-Encoding is not supported; send the body as it is"};
  }
  return refused_length(fields, method_of(head), max_body_bytes);
}

std::optional<int64_t> body_length(std::string_view head) {
  const BodyFields fields(head);
  if (!fields.transfers.empty()) return {};
  if (fields.lengths.empty()) return 0;
  return static_cast<int64_t>(number_of(fields.lengths.front()).value_or(0));
}

}  // namespace reynard::http
