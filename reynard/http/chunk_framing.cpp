#include "reynard/http/chunk_framing.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>

namespace reynard::http {

namespace {

// Digits alone: no sign, no 0x, no blanks. Extensions may follow them.
std::optional<uint64_t> chunk_size(std::string_view line) {
  const std::string_view digits = line.substr(0, line.find(';'));
  const char* const last = digits.data() + digits.size();
  uint64_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), last, size, 16);
  if (error != std::errc() || end != last) return {};
  return size;
}

}  // namespace

bool ChunkFraming::end_line() {
  if (line_.size() < 2 || line_.find('\r') != line_.size() - 2) return false;
  const std::string_view text(line_.data(), line_.size() - 2);
  if (next_ == Line::kSize) {
    const std::optional<uint64_t> size = chunk_size(text);
    if (!size) return false;
    data_left_ = *size;
    next_ = *size > 0 ? Line::kDataEnd : Line::kTrailer;
  } else if (next_ == Line::kDataEnd) {
    if (!text.empty()) return false;
    next_ = Line::kSize;
  } else {
    trailer_bytes_ += static_cast<int64_t>(line_.size());
    if (text.empty()) next_ = Line::kNone;
  }
  line_.clear();
  return true;
}

std::optional<std::size_t> ChunkFraming::keep(char* data, std::size_t size) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < size;) {
    if (data_left_ > 0) {
      const std::size_t here = std::min<uint64_t>(data_left_, size - i);
      std::memmove(data + kept, data + i, here);
      kept += here, i += here, data_left_ -= here;
      continue;
    }
    if (next_ == Line::kNone) return {};
    const char c = data[i++];
    line_ += c;
    // Of the trailer only the empty line behind it.
    const bool is_kept = next_ != Line::kTrailer || line_ == "\r" || line_ == "\r\n";
    if (is_kept) data[kept++] = c;
    if (trailer_bytes_ + static_cast<int64_t>(line_.size()) > max_line_bytes_) return {};
    if (c == '\n' && !end_line()) return {};
  }
  return kept;
}

}  // namespace reynard::http
