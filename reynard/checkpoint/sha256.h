#pragma once
// SHA-256 (FIPS 180-4): the digest by which a checkpoint's files are verified on load. Not meant
// for secrets.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace reynard::checkpoint {

class Sha256 {
 public:
  void update(const void* data, std::size_t bytes);
  // Digest of everything so far as 64 lower-case hex digits; the object is spent afterwards.
  std::string hex();

 private:
  std::array<uint32_t, 8> state_ = {0x6a09e667,
                                    0xbb67ae85,
                                    0x3c6ef372,
                                    0xa54ff53a,
                                    0x510e527f,
                                    0x9b05688c,
                                    0x1f83d9ab,
                                    0x5be0cd19};
  std::array<unsigned char, 64> block_{};  // input that does not fill a block yet
  uint64_t total_bytes_ = 0;
};

std::string sha256_hex(std::string_view bytes);
// Streams the file. Throws reynard::Error when it cannot be read.
std::string sha256_hex_of_file(const std::filesystem::path& path);

}  // namespace reynard::checkpoint
