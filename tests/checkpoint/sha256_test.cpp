#include "reynard/checkpoint/sha256.h"

#include "reynard/tensor/check.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <string>

namespace reynard::checkpoint {
namespace {

// FIPS 180-4 examples and NIST's million a's.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (const std::size_t piece : {1, 3, 63, 64, 65, 128}) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hash.update(text.data() + at, std::min(piece, text.size() - at));
    }
    EXPECT_EQ(hash.hex(), sha256_hex(text)) << piece;
  }
}

TEST(Sha256, ADigestMayBeTakenOnTheWay) {
  Sha256 hash;
  hash.update("ab", 2);
  EXPECT_EQ(hash.hex(), sha256_hex("ab"));
  hash.update("c", 1);
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
}

TEST(Sha256, FileDigestIsThatOfItsBytes) {
  const test::TempDir folder;
  test::write_file(folder / "f", std::string(3'000'000, 'x'));
  EXPECT_EQ(sha256_hex_of_file(folder / "f"), sha256_hex(std::string(3'000'000, 'x')));
  EXPECT_THROW(sha256_hex_of_file(folder / "missing"), Error);
}

}  // namespace
}  // namespace reynard::checkpoint
