#include "reynard/checkpoint/sha256.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace reynard::checkpoint {

namespace {

// A libcrypto that is set up without SHA-256 fails.
void check_libcrypto(int succeeded) {
  if (succeeded != 1) throw Error("SHA-256: libcrypto cannot compute it");
}

}  // namespace

void Sha256::Free::operator()(EVP_MD_CTX* context) const {
  EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  check_libcrypto(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::update(const void* data, std::size_t bytes) {
  check_libcrypto(EVP_DigestUpdate(context_.get(), data, bytes));
}

std::string Sha256::hex() const {
  // Finishing spends a context.
  const std::unique_ptr<EVP_MD_CTX, Free> copy(EVP_MD_CTX_new());
  std::array<unsigned char, 32> digest;
  check_libcrypto(EVP_MD_CTX_copy_ex(copy.get(), context_.get()));
  check_libcrypto(EVP_DigestFinal_ex(copy.get(), digest.data(), nullptr));
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

std::string sha256_hex_of_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file)
    throw Error(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  Sha256 hash;
  std::vector<unsigned char> buffer(1 << 20);
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    hash.update(buffer.data(), got);
  }
  if (std::ferror(file.get()) != 0) {
    throw Error(fmt::format("{}: reading failed: {}", path.string(), std::strerror(errno)));
  }
  return hash.hex();
}

}  // namespace reynard::checkpoint
