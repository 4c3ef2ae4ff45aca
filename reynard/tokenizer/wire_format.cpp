#include "reynard/tokenizer/wire_format.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace reynard::tokenizer {

namespace {

void expect(bool holds, const WireField& field, const std::string& where) {
  if (!holds) {
    throw Error(fmt::format("{}: field {} is of another kind than expected", where, field.number));
  }
}

}  // namespace

std::string_view WireField::as_bytes(const std::string& where) const {
  expect(kind == Kind::kBytes, *this, where);
  return bytes;
}

bool WireField::as_bool(const std::string& where) const {
  expect(kind == Kind::kVarint, *this, where);
  return value != 0;
}

int64_t WireField::as_int(const std::string& where) const {
  expect(kind == Kind::kVarint, *this, where);
  return static_cast<int64_t>(value);
}

float WireField::as_float(const std::string& where) const {
  expect(kind == Kind::kFixed32, *this, where);
  return std::bit_cast<float>(static_cast<uint32_t>(value));
}

WireReader::WireReader(std::string_view message, std::string where)
    : message_(message), where_(std::move(where)) {}

void WireReader::fail() const {
  throw Error(fmt::format("{}: damaged at byte {}", where_, at_));
}

uint64_t WireReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ >= message_.size()) fail();
    const auto byte = static_cast<unsigned char>(message_[at_++]);
    value |= uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
  fail();
}

uint64_t WireReader::fixed(int num_bytes) {
  if (message_.size() - at_ < static_cast<std::size_t>(num_bytes)) fail();
  uint64_t value = 0;
  for (int i = 0; i < num_bytes; ++i) {
    value |= uint64_t{static_cast<unsigned char>(message_[at_++])} << 8 * i;
  }
  return value;
}

bool WireReader::next(WireField& field) {
  if (at_ >= message_.size()) return false;
  const uint64_t key = varint();
  field = {};
  field.number = key >> 3;
  switch (key & 7) {
    case 0:
      field.kind = WireField::Kind::kVarint;
      field.value = varint();
      break;
    case 1:
      field.kind = WireField::Kind::kFixed64;
      field.value = fixed(8);
      break;
    case 2: {
      field.kind = WireField::Kind::kBytes;
      const uint64_t size = varint();
      if (size > message_.size() - at_) fail();
      field.bytes = message_.substr(at_, size);
      at_ += size;
      break;
    }
    case 5:
      field.kind = WireField::Kind::kFixed32;
      field.value = fixed(4);
      break;
    default:  // groups are not used any more
      fail();
  }
  return true;
}

}  // namespace reynard::tokenizer
