#include "reynard/evaluation/packed_floats.h"

#include "reynard/tensor/check.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace reynard::evaluation {

namespace {

static_assert(std::endian::native == std::endian::little, "the packed order is the machine's");

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> make_digits() {
  std::array<int8_t, 256> digits{};
  digits.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  }
  return digits;
}

}  // namespace

std::string pack_floats(std::span<const float> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      const bool padding = i + j > bytes.size();
      text += padding ? '=' : kAlphabet[(group >> (18 - 6 * j)) & 63];
    }
  }
  return text;
}

std::vector<float> unpack_floats(std::string_view text) {
  static constexpr std::array<int8_t, 256> kDigits = make_digits();
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t group = 0;
  int bits = 0;
  for (const char c : text) {
    const int8_t digit = kDigits[static_cast<uint8_t>(c)];
    if (digit < 0) throw Error("packed floats: a character is not base64");
    group = group << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      bytes.push_back(static_cast<uint8_t>(group >> bits));
    }
  }
  if (bytes.size() % sizeof(float) != 0) throw Error("packed floats: the last number is cut short");
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace reynard::evaluation
