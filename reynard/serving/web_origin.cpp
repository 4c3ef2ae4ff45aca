#include "reynard/serving/web_origin.h"

#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace reynard::serving {

namespace {

bool is_equal(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

// host of host:port; IPv6 in its brackets.
std::string_view without_port(std::string_view authority) {
  const std::size_t bracket = authority.rfind(']');
  const std::size_t colon = authority.rfind(':');
  if (colon == std::string_view::npos) return authority;
  if (bracket != std::string_view::npos && colon < bracket) return authority;
  return authority.substr(0, colon);
}

// Addresses, which no owner of a name can let point elsewhere, and names that are always ours.
bool is_own_name(std::string_view host) {
  constexpr std::string_view kLocal = "localhost", kLocalDomain = ".localhost";
  if (host.starts_with('[') || host.find_first_not_of("0123456789.") == std::string_view::npos) {
    return true;
  }
  const bool in_domain = host.size() > kLocalDomain.size() &&
                         is_equal(host.substr(host.size() - kLocalDomain.size()), kLocalDomain);
  return is_equal(host, kLocal) || in_domain;
}

}  // namespace

bool is_for_this_machine_only(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || is_equal(address, "localhost");
}

std::string refused_origin(std::string_view origin,
                           std::string_view host,
                           std::string_view address) {
  constexpr std::string_view kScheme = "://";
  const std::size_t scheme = origin.find(kScheme);
  const std::string_view site =
      scheme == std::string_view::npos ? origin : origin.substr(scheme + kScheme.size());
  if (!origin.empty() && !is_equal(site, host)) {
    return fmt::format(
        "a page of another site asked (Origin: {}, Host: {}); without --api-key only this server's "
        "own page is answered",
        tokenizer::displayable(origin),
        tokenizer::displayable(host));
  }
  const std::string_view name = without_port(host);
  if (name.empty() || !is_for_this_machine_only(address) || is_own_name(name)) return {};
  return fmt::format(
      "Host: {} is no name of a server that listens at {} alone; ask for {} or localhost, or start "
      "it with --api-key",
      tokenizer::displayable(host),
      address,
      address);
}

}  // namespace reynard::serving
