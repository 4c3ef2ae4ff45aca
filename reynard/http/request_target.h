#pragma once
// The target of a request in absolute form, "GET http://host:port/path" (RFC 9112, section 3.2.2),
// which proxies and some clients send and every server must take: what stands before its path is
// checked and taken out. Targets of other forms are left to whoever routes them.

#include "reynard/http/request_head.h"

#include <optional>
#include <string>
#include <string_view>

namespace reynard::http {

// `head`: the request line and the fields behind it. Nothing: its target has another form, or is a
// URI of http with a host. One of https is refused: there is no TLS here (RFC 9110, section 7.4).
// So is a head without a field Host, which HTTP/1.1 asks for, one that is malformed, or two:
// readers may differ in whom the request is for.
std::optional<Refusal> refused_target(std::string_view head);

// The head with a target "/path?query" instead of the absolute one; nothing: it has none. The
// host, which stands above that of the field Host, is not looked at: we serve one.
std::optional<std::string> with_origin_form(std::string_view head);

}  // namespace reynard::http
