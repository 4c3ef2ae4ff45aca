#include "reynard/attention/cpu/page_writer.h"

#include "reynard/attention/bias_limits.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/cpu/page_words.h"
#include "reynard/attention/log_mass.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace reynard::attention::cpu {

namespace {

// The new tokens of one sequence: places in its pages' order.
struct NewTokens {
  const int32_t* table;  // (G, N)
  int64_t begin, T;      // the first one's place, and how many

  NewTokens(const PageWrite& w, int64_t s)
      : table(w.page_table.const_data_ptr<int32_t>() +
              s * w.page_table.size(1) * w.page_table.size(2)),
        begin(w.lengths.const_data_ptr<int64_t>()[s] - w.num_tokens()),
        T(w.num_tokens()) {}
};

// (H, T): the running sums of the gates of sequence s.
std::vector<double> running_sums(const PageWrite& w, int64_t s) {
  const NewTokens tokens(w, s);
  const int64_t T = tokens.T, N = w.page_table.size(2), group = w.sums.size(1);
  const int64_t H = w.k.size(1) * group, before = tokens.begin - 1;
  std::vector<double> c(H * T);
  const float* gates =
      w.log_gate.defined() ? w.log_gate.const_data_ptr<float>() + s * T * H : nullptr;
  for (int64_t h = 0; h < H; ++h) {
    double sum = 0;
    if (before >= 0) {
      const int64_t page = tokens.table[h / group * N + before / kPageTokens];
      sum = w.sums.const_data_ptr<double>()[(page * group + h % group) * kPageTokens +
                                            before % kPageTokens];
    }
    for (int64_t t = 0; t < T; ++t) {
      if (gates) sum += std::max<double>(gates[t * H + h], kSmallestLogGate);
      c[h * T + t] = sum;
    }
  }
  return c;
}

// Below it rows are zeros: scales and their multiples stay normal numbers.
constexpr float kSmallestScale = 1e-30F;

// In eight sums, so that additions need not wait for each other.
template <class Value>
double sum_of_squares(const Value* x, int64_t width) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  const auto add = [&](int64_t i, int64_t of) {
    const auto value = static_cast<double>(static_cast<float>(x[i]));
    sums[of] += value * value;
  };
  int64_t i = 0;
  for (; i + kSums <= width; i += kSums) {
    for (int64_t of = 0; of < kSums; ++of) add(i + of, of);
  }
  for (; i < width; ++i) add(i, i % kSums);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// A row of any dtype in f32.
template <class Value>
void widen(const Value* from, std::vector<float>& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i]);
}
void widen(at::ScalarType dtype, const void* from, std::vector<float>& to) {
  switch (dtype) {
    case at::kBFloat16:
      return widen(static_cast<const at::BFloat16*>(from), to);
    case at::kHalf:
      return widen(static_cast<const at::Half*>(from), to);
    default:
      return widen(static_cast<const float*>(from), to);
  }
}

// The row as multiples of a scale, which is returned: the nearest ones, 127 for the largest value.
// The scale has 16 significant bits, so that multiples are f32 numbers, and rounding those again
// gives the same codes and scale. Rows with values that are not finite become NaN.
float round_to_int8(const std::vector<float>& row, int8_t* codes) {
  float largest = 0;
  bool finite = true;
  for (const float x : row) {
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::abs(x));
  }
  if (!finite) {
    std::fill_n(codes, row.size(), int8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  constexpr uint32_t kDropped = 0xff;
  const auto bits = std::bit_cast<uint32_t>(std::max(largest / 127, kSmallestScale));
  const auto scale = std::bit_cast<float>((bits + kDropped) & ~kDropped);
  // Adding it rounds to an integer, to nearest even, which the lowest bits of the sum then hold:
  // vector code on every processor, in half the time of a call for each value.
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23
  for (size_t i = 0; i < row.size(); ++i) {
    codes[i] = static_cast<int8_t>(std::bit_cast<int32_t>(row[i] / scale + kRound));
  }
  return scale;
}

double sum_of_squares(at::ScalarType dtype, const void* row, int64_t width) {
  switch (dtype) {
    case at::kBFloat16:
      return sum_of_squares(static_cast<const at::BFloat16*>(row), width);
    case at::kHalf:
      return sum_of_squares(static_cast<const at::Half*>(row), width);
    default:
      return sum_of_squares(static_cast<const float*>(row), width);
  }
}

// One token of one kv head into its place of a page, with the page's bounds.
struct TokenWriter {
  const PageWrite& to;
  int64_t group, row_bytes;  // of k and v
  std::vector<float> wide;   // a row that is rounded
  std::vector<int8_t> codes;

  explicit TokenWriter(const PageWrite& w)
      : to(w),
        group(w.sums.size(1)),
        row_bytes(w.k.size(2) * static_cast<int64_t>(w.k.element_size())),
        wide(w.k.size(2)),
        codes(w.k.size(2)) {}

  // Returns the squared norm of the key as it is kept.
  double key_and_value(int32_t page, int64_t slot, const void* k, const void* v) {
    const int64_t D = to.k.size(2);
    if (to.scales.defined()) {
      float* scales = to.scales.mutable_data_ptr<float>() + page * 2 * kPageTokens + slot;
      widen(to.v.scalar_type(), v, wide);
      scales[kPageTokens] = round_to_int8(wide, codes.data());
      write_value(codes.data(), D, slot, words<int8_t>(to.values, page));
      widen(to.k.scalar_type(), k, wide);
      *scales = round_to_int8(wide, codes.data());
      write_key(codes.data(), D, slot, words<int8_t>(to.keys, page));
      double squares = 0;
      for (const int8_t code : codes) squares += static_cast<double>(code * code);
      return squares * *scales * *scales;
    }
    if (to.k.element_size() == sizeof(float)) {
      write<uint32_t>(page, slot, k, v);
    } else {
      write<uint16_t>(page, slot, k, v);
    }
    return sum_of_squares(to.k.scalar_type(), k, D);
  }
  void norm(int32_t page, int64_t slot, double squares) const {
    float& largest = to.norms.mutable_data_ptr<float>()[page];
    if (slot == 0) largest = 0;
    // Rounded up: it is a bound.
    const float norm = std::nextafter(static_cast<float>(std::sqrt(squares)),
                                      std::numeric_limits<float>::infinity());
    // Of a broken key nothing is known: its page is read as long as it is there.
    largest = std::isnan(norm) ? std::numeric_limits<float>::infinity() : std::max(largest, norm);
  }
  void sum(int32_t page, int64_t head_of_group, int64_t slot, double c) const {
    const int64_t row = page * group + head_of_group;
    to.sums.mutable_data_ptr<double>()[row * kPageTokens + slot] = c;
    double& mass = to.masses.mutable_data_ptr<double>()[row];
    mass = log_add_exp(slot == 0 ? kNoMass : mass, -c);
  }

 private:
  // Of pages whose elements are as large as Bits.
  template <class Bits>
  uint32_t* words(const at::Tensor& pages, int32_t page) const {
    return static_cast<uint32_t*>(pages.mutable_data_ptr()) + page * page_words<Bits>(to.k.size(2));
  }
  template <class Bits>
  void write(int32_t page, int64_t slot, const void* k, const void* v) const {
    const int64_t D = to.k.size(2);
    write_key(static_cast<const Bits*>(k), D, slot, words<Bits>(to.keys, page));
    write_value(static_cast<const Bits*>(v), D, slot, words<Bits>(to.values, page));
  }
};

void write_sequence(const PageWrite& w, int64_t s, TokenWriter& writer) {
  if (w.lengths.const_data_ptr<int64_t>()[s] == 0) return;
  const NewTokens tokens(w, s);
  const int64_t T = tokens.T, G = w.k.size(1), N = w.page_table.size(2);
  const bool given = w.token_sums.defined();
  const std::vector<double> sums = given ? std::vector<double>() : running_sums(w, s);
  const double* c =
      given ? w.token_sums.const_data_ptr<double>() + s * w.token_sums.stride(0) : sums.data();
  const auto* keys = static_cast<const char*>(w.k.const_data_ptr());
  const auto* values = static_cast<const char*>(w.v.const_data_ptr());
  for (int64_t g = 0; g < G; ++g) {
    for (int64_t t = 0; t < T; ++t) {
      const int64_t place = tokens.begin + t, slot = place % kPageTokens;
      const int32_t page = tokens.table[g * N + place / kPageTokens];
      if (page < 0) continue;
      const int64_t offset = ((s * T + t) * G + g) * writer.row_bytes;
      const double squares = writer.key_and_value(page, slot, keys + offset, values + offset);
      writer.norm(page, slot, squares);
      for (int64_t h = 0; h < writer.group; ++h) {
        writer.sum(page, h, slot, c[(g * writer.group + h) * T + t]);
      }
    }
  }
}

}  // namespace

void write_pages(const PageWrite& w) {
  TokenWriter writer(w);
  for (int64_t s = 0; s < w.num_sequences(); ++s) write_sequence(w, s, writer);
}

}  // namespace reynard::attention::cpu
