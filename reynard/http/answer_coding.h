#pragma once
// Which codings a client takes answers in (RFC 9110, section 12.5.3), said so that the HTTP library
// understands it: that looks for the letters of a coding anywhere in the first field.

#include <optional>
#include <string>
#include <string_view>

namespace reynard::http {

// The head with one field Accept-Encoding at its end, which names those codings of the library's
// (gzip, br) that the fields of the client name without forbidding them; without any where there
// are none. Nothing: the head has no such field.
std::optional<std::string> with_known_codings(std::string_view head);

}  // namespace reynard::http
