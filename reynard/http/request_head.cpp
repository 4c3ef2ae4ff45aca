#include "reynard/http/request_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace reynard::http {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string_view line_of(std::string_view head) {
  return head.substr(0, head.find("\r\n"));
}

}  // namespace

bool is_word(std::string_view text, std::string_view word) {
  return std::ranges::equal(text, word, {}, lower);
}

bool is_token(std::string_view name) {
  constexpr std::string_view kSigns = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::ranges::all_of(name, [&](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
           kSigns.find(c) != std::string_view::npos;
  });
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::string_view method_of(std::string_view head) {
  const std::string_view line = line_of(head);
  return line.substr(0, line.find(' '));
}

bool is_http_1_0(std::string_view head) {
  return line_of(head).ends_with(" HTTP/1.0");
}

std::vector<std::string_view> values_of(std::string_view head, std::string_view name) {
  std::vector<std::string_view> values;
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos;) {
    const std::string_view line = line_of(head.substr(at + 2));
    at = head.find("\r\n", at + 2);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_word(line.substr(0, colon), name)) continue;
    values.push_back(trimmed(line.substr(colon + 1)));
  }
  return values;
}

std::vector<std::string_view> items_of(std::string_view head, std::string_view name) {
  std::vector<std::string_view> items;
  for (std::string_view list : values_of(head, name)) {
    while (!list.empty()) {
      const std::string_view item = list.substr(0, list.find(','));
      items.push_back(trimmed(item));
      list.remove_prefix(std::min(item.size() + 1, list.size()));
    }
  }
  return items;
}

bool ends_connection(std::string_view head) {
  return is_http_1_0(head) || std::ranges::any_of(items_of(head, "connection"), [](auto option) {
           return is_word(option, "close");
         });
}

std::string bearer_key(std::string_view authorization) {
  const std::size_t end = authorization.find(' ');
  if (end == std::string_view::npos || !is_word(authorization.substr(0, end), "bearer")) return {};
  return std::string(trimmed(authorization.substr(end)));
}

std::optional<Refusal> refused_line(std::string_view head, std::size_t max_bytes) {
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos;) {
    const std::size_t bytes = line_of(head.substr(at + 2)).size();
    if (bytes > max_bytes) {
      return Refusal{
          431,
          "Request Header Fields Too Large",
          fmt::format("a line of the head has {} bytes; it may have {}", bytes, max_bytes)};
    }
    at = head.find("\r\n", at + 2);
  }
  return {};
}

std::optional<Refusal> refused_method(std::string_view head) {
  constexpr std::array<std::string_view, 9> kMethods = {
      "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"};
  const std::string_view method = method_of(head);
  const bool is_request = is_token(method) && line_of(head).find(" HTTP/1.") != head.npos;
  if (!is_request || std::ranges::find(kMethods, method) != kMethods.end()) return {};
  return Refusal{501, "Not Implemented", "the method of the request is not known here"};
}

}  // namespace reynard::http
