#pragma once
// Lists of numbers in JSON lines: base64 of little-endian f32, so that per-token results of long
// rows stay small (5.4 bytes a number) and come back bit for bit.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

std::string pack_floats(std::span<const float> values);

// Throws reynard::Error when the text is not base64 of whole floats.
std::vector<float> unpack_floats(std::string_view text);

}  // namespace reynard::evaluation
