#pragma once
// SHA-256 (FIPS 180-4), by libcrypto: the digest by which a checkpoint's files are verified on
// load.

#include <openssl/types.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace reynard::checkpoint {

class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t bytes);
  // Digest of everything so far as 64 lower-case hex digits; more may follow.
  std::string hex() const;

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const;
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

std::string sha256_hex(std::string_view bytes);
// Streams the file. Throws reynard::Error when it cannot be read.
std::string sha256_hex_of_file(const std::filesystem::path& path);

}  // namespace reynard::checkpoint
