// The words of a page of the CPU's cache: where each value of a row lies, and that rows come back.

#include "reynard/attention/cpu/page_words.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace reynard::attention::cpu {
namespace {

template <class Bits>
class PageWords : public testing::Test {
 protected:
  // Rows whose values are all different, as far as Bits can tell them apart.
  static std::vector<Bits> rows(int64_t head_dim) {
    std::vector<Bits> values(kKeysPerPage * head_dim);
    std::iota(values.begin(), values.end(), Bits{1});
    return values;
  }
  static Bits value(uint32_t word, int64_t index) {
    return static_cast<Bits>(word >> index * 8 * sizeof(Bits));
  }
};

using Sizes = testing::Types<uint8_t, uint16_t, uint32_t>;
TYPED_TEST_SUITE(PageWords, Sizes);

constexpr int64_t kHeadDims[] = {1, 15, 16, 37, 64, 80, 256};
constexpr uint32_t kGarbage = 0xdeadbeef;

TYPED_TEST(PageWords, OfKeysHoldDimensionsAndZerosBehindThem) {
  constexpr int64_t n = 4 / sizeof(TypeParam);
  for (const int64_t D : kHeadDims) {
    SCOPED_TRACE("D" + std::to_string(D));
    const auto rows = this->rows(D);
    std::vector<uint32_t> page(page_words<TypeParam>(D), kGarbage);
    ASSERT_EQ(std::ssize(page), (D + 15) / 16 * 16 / n * kKeysPerPage);
    for (int64_t t = 0; t < kKeysPerPage; ++t) write_key(rows.data() + t * D, D, t, page.data());
    for (int64_t d = 0; d < std::ssize(page) / kKeysPerPage * n; ++d) {
      for (int64_t t = 0; t < kKeysPerPage; ++t) {
        const TypeParam expected = d < D ? rows[t * D + d] : TypeParam{0};
        ASSERT_EQ(this->value(page[d / n * kKeysPerPage + t], d % n), expected) << d << ' ' << t;
      }
    }
    std::vector<TypeParam> read(rows.size());
    read_keys(page.data(), D, read.data());
    EXPECT_EQ(read, rows);
  }
}

TYPED_TEST(PageWords, OfValuesHoldNeighbouringKeys) {
  constexpr int64_t n = 4 / sizeof(TypeParam);
  for (const int64_t D : kHeadDims) {
    SCOPED_TRACE("D" + std::to_string(D));
    const auto rows = this->rows(D);
    const int64_t width = (D + 15) / 16 * 16;
    std::vector<uint32_t> page(page_words<TypeParam>(D), kGarbage);
    for (int64_t t = 0; t < kKeysPerPage; ++t) write_value(rows.data() + t * D, D, t, page.data());
    for (int64_t t = 0; t < kKeysPerPage; ++t) {
      for (int64_t d = 0; d < D; ++d) {
        ASSERT_EQ(this->value(page[t / n * width + d], t % n), rows[t * D + d]) << d << ' ' << t;
      }
    }
    std::vector<TypeParam> read(rows.size());
    read_values(page.data(), D, read.data());
    EXPECT_EQ(read, rows);
  }
}

// A slot is written again after a sequence was truncated, beside others that stay.
TYPED_TEST(PageWords, ASlotIsWrittenWithoutItsNeighbours) {
  constexpr int64_t D = 37;
  auto rows = this->rows(D);
  std::vector<uint32_t> keys(page_words<TypeParam>(D), kGarbage), values = keys;
  const auto write = [&](int64_t t) {
    write_key(rows.data() + t * D, D, t, keys.data());
    write_value(rows.data() + t * D, D, t, values.data());
  };
  for (int64_t t = 0; t < kKeysPerPage; ++t) write(t);
  for (int64_t d = 0; d < D; ++d) rows[5 * D + d] = static_cast<TypeParam>(200 - d);
  write(5);
  std::vector<TypeParam> read(rows.size());
  read_keys(keys.data(), D, read.data());
  EXPECT_EQ(read, rows);
  read_values(values.data(), D, read.data());
  EXPECT_EQ(read, rows);
}

}  // namespace
}  // namespace reynard::attention::cpu
