#include "reynard/http/request_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace reynard::http {

namespace {

constexpr std::string_view kHttp = "http://", kHttps = "https://";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter_or_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// `prefix` is in lower case.
bool begins_with(std::string_view text, std::string_view prefix) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  return text.size() >= prefix.size() &&
         std::ranges::equal(text.substr(0, prefix.size()), prefix, {}, lower);
}

std::string_view target_of(std::string_view head) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::size_t begin = line.find(' ');
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = line.substr(begin + 1);
  return rest.substr(0, rest.find(' '));
}

std::string_view authority_of(std::string_view http_target) {
  const std::string_view rest = http_target.substr(kHttp.size());
  return rest.substr(0, rest.find_first_of("/?#"));
}

// Of a name or an address: the characters that RFC 3986, section 3.2.2, allows there; in brackets
// those of IPv6.
bool is_host(std::string_view host) {
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string_view signs = bracketed ? ":." : "-._~%!$&'()*+,;=";
  return !host.empty() && std::ranges::all_of(host, [&](char c) {
    return is_letter_or_digit(c) || signs.find(c) != std::string_view::npos;
  });
}

// host, host: or host:port; without a user, whom RFC 9110, section 4.2.4, takes for a deceit.
bool is_authority(std::string_view authority) {
  constexpr std::size_t kMaxPortDigits = 5;
  const std::size_t colon = authority.rfind(':');
  const std::size_t bracket = authority.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  if (!has_port) return is_host(authority);
  const std::string_view port = authority.substr(colon + 1);
  return port.size() <= kMaxPortDigits && std::ranges::all_of(port, is_digit) &&
         is_host(authority.substr(0, colon));
}

// One, of a host (RFC 9112, section 3.2), which HTTP/1.0 may leave out; an empty one is that of no
// host.
bool has_fit_host(std::string_view head) {
  const std::vector<std::string_view> hosts = values_of(head, "host");
  if (hosts.empty()) return is_http_1_0(head);
  return hosts.size() == 1 && (hosts.front().empty() || is_authority(hosts.front()));
}

}  // namespace

std::optional<Refusal> refused_target(std::string_view head) {
  if (!has_fit_host(head)) {
    return Refusal{
        400, "Bad Request", "the field Host is missing, malformed, or given more than once"};
  }
  const std::string_view target = target_of(head);
  if (begins_with(target, kHttps)) {
    return Refusal{421, "Misdirected Request", "there is no TLS here; ask for http:// instead"};
  }
  if (!begins_with(target, kHttp) || is_authority(authority_of(target))) return {};
  return Refusal{400,
                 "Bad Request",
                 "the target of the request is malformed; expected a path, or http://HOST:PORT/ "
                 "and a path"};
}

std::optional<std::string> with_origin_form(std::string_view head) {
  const std::string_view target = target_of(head);
  if (!begins_with(target, kHttp)) return {};
  const std::string_view path = target.substr(kHttp.size() + authority_of(target).size());
  const auto begin = static_cast<std::size_t>(target.data() - head.data());
  return fmt::format("{}{}{}{}",
                     head.substr(0, begin),
                     path.starts_with('/') ? "" : "/",
                     path,
                     head.substr(begin + target.size()));
}

}  // namespace reynard::http
