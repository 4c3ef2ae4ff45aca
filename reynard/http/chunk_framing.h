#pragma once
// The framing of a body in chunks (RFC 9112, section 7.1), to the letter, as its bytes pass by: two
// readers must not find other bodies in it. Trailer fields, which the HTTP library takes for an
// error and nobody here asks for, are left out.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace reynard::http {

class ChunkFraming {
 public:
  // Bytes that the line of a chunk's size may have, and all trailer fields together.
  explicit ChunkFraming(int64_t max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  // Moves those of the body's next bytes that are to be read to the front and returns their number,
  // which may be 0. Nothing: the body is malformed, or longer than its framing says.
  std::optional<std::size_t> keep(char* data, std::size_t size);

 private:
  enum class Line { kSize, kDataEnd, kTrailer, kNone };  // what the next line is

  // Whether the line that ended is what it has to be.
  bool end_line();

  int64_t max_line_bytes_;
  Line next_ = Line::kSize;
  std::string line_;           // begun and not ended
  uint64_t data_left_ = 0;     // bytes of the chunk
  int64_t trailer_bytes_ = 0;  // of the lines that ended
};

}  // namespace reynard::http
