#pragma once
// What the head of a request says of its body: whether it is to be read at all. What is refused
// here costs the server neither the time nor the memory that the body would.

#include "reynard/http/request_head.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace reynard::http {

// `head`: the request line and the fields behind it. Nothing: the body can be read. What two
// readers could take for bodies of different lengths is refused, since one of them may stand before
// us: repeated lengths, a length beside chunks, codings, fields that go on in the next line.
std::optional<Refusal> refused_body(std::string_view head, int64_t max_body_bytes);

// Bytes of the body of a head that was not refused. Nothing: it comes in chunks.
std::optional<int64_t> body_length(std::string_view head);

}  // namespace reynard::http
