#pragma once
// What stands in the head of a request: its line, the fields behind it, and whether its method is
// one that the server takes up. What its body and its target must be is in body_head.h and
// request_target.h.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::http {

struct Refusal {
  int status;          // of the answer
  const char* reason;  // the phrase that belongs to it
  std::string message;
};

// Whether they are the same but for the case of letters; `word` is in lower case.
bool is_word(std::string_view text, std::string_view word);

// RFC 9110, section 5.6.2: what some readers pass over in a name makes another field of it.
bool is_token(std::string_view name);

// Without blanks around it.
std::string_view trimmed(std::string_view text);

std::string_view method_of(std::string_view head);

bool is_http_1_0(std::string_view head);

// Of all fields of this name, given in lower case, in their order.
std::vector<std::string_view> values_of(std::string_view head, std::string_view name);

// The items of all fields of this name, which are lists: "a, b" (RFC 9110, section 5.6.1).
std::vector<std::string_view> items_of(std::string_view head, std::string_view name);

// Whether the answer is the last one on its connection: HTTP/1.0, whose answers may end with the
// connection alone, or "close" among the options of Connection (RFC 9112, section 9.6).
bool ends_connection(std::string_view head);

// The key of "Bearer KEY", a value of Authorization, whose scheme may be written in any case (RFC
// 9110, section 11.1); empty: there is none.
std::string bearer_key(std::string_view authorization);

// A line of a field that is longer than so many bytes, of which the HTTP library would only say
// that the request is none.
std::optional<Refusal> refused_line(std::string_view head, std::size_t max_bytes);

// Nothing: a method of HTTP, which a path may take or not, or a line that is no request.
std::optional<Refusal> refused_method(std::string_view head);

}  // namespace reynard::http
