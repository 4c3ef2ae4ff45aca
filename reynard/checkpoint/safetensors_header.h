#pragma once
// The JSON header of a safetensors file: parsing with every check that needs no tensor data, and
// the names of dtypes.

#include "reynard/checkpoint/safetensors.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::checkpoint {

// The format's own limit on the header.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct Header {
  std::vector<TensorInfo> tensors;  // in the order of the header
  std::map<std::string, std::string> metadata;
};

// Throws reynard::Error, beginning with `file`, unless the text is a valid header whose tensors
// cover the data section of data_bytes exactly: no gap, no overlap, no byte beyond.
Header parse_header(std::string_view text, const std::string& file, uint64_t data_bytes);

// "F32" for kFloat. Throws reynard::Error for a dtype that the format has no name for.
std::string_view dtype_name(at::ScalarType dtype);

// Whether a folder's list may name a file so: one in that folder, not a path that leads out of it,
// without control characters.
bool is_plain_name(std::string_view name);

// The name as a message shows it: JSON-quoted, so that it stays on one line, and cut when long.
std::string json_quoted(std::string_view name);

}  // namespace reynard::checkpoint
