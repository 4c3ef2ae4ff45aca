#pragma once
// The bytes of a file, unpacked when its name ends in .gz or .zst, in bounded memory.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace reynard::data {

class ByteStream {
 public:
  // Throws reynard::Error when the file cannot be opened.
  explicit ByteStream(const std::filesystem::path& path);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Fills `out` as far as there are bytes; 0 at the end. Throws reynard::Error when the file cannot
  // be read, is not what its name says, or is cut short.
  size_t read(std::span<char> out);
  // Bytes of the file that were used so far, before unpacking.
  int64_t packed_position() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace reynard::data
