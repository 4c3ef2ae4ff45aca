#pragma once
// Reads Protocol Buffers messages field by field, checking every length. It knows the wire format
// only: what fields mean is the caller's business.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

struct WireField {
  uint64_t number = 0;
  enum class Kind { kVarint, kFixed64, kBytes, kFixed32 };
  Kind kind = Kind::kVarint;
  uint64_t value = 0;      // of the fixed kinds and of kVarint
  std::string_view bytes;  // of kBytes

  // The value of a field of another kind is an error: they throw reynard::Error naming `where`.
  std::string_view as_bytes(const std::string& where) const;
  bool as_bool(const std::string& where) const;
  int64_t as_int(const std::string& where) const;
  float as_float(const std::string& where) const;
};

class WireReader {
 public:
  // where: what the message is, in errors.
  WireReader(std::string_view message, std::string where);
  // false at the end of the message. Throws reynard::Error for a message that is cut short or no
  // such message at all.
  bool next(WireField& field);

 private:
  [[noreturn]] void fail() const;
  uint64_t varint();
  uint64_t fixed(int num_bytes);

  std::string_view message_;
  std::string where_;
  std::size_t at_ = 0;
};

}  // namespace reynard::tokenizer
