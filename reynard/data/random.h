#pragma once
// Random numbers that are a pure function of (seed, stream, counter): the same on every machine and
// standard library, and a reader can start anywhere. No state is kept, so resuming needs none.

#include <cstdint>
#include <string_view>

namespace reynard::data {

// The finalizer of splitmix64 (Steele et al. 2014): a bijection that mixes every bit.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

constexpr uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  return mix(mix(mix(seed) ^ stream) ^ counter);
}

// Uniform in [0, n), n >= 1: the high word of bits * n (bias below n / 2^64).
constexpr int64_t below(uint64_t bits, int64_t n) {
  return static_cast<int64_t>((static_cast<unsigned __int128>(bits) * static_cast<uint64_t>(n)) >>
                              64);
}

// Uniform in [0, 1) with 53 bits.
constexpr double unit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Hash of a text (FNV-1a, mixed): decides by name, whatever else there is.
constexpr uint64_t hash(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325U;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return mix(h);
}

// A random order of 0 ... n - 1 that needs no memory: a Feistel network over the next power of
// four, walked until it lands below n (four steps at most on average).
class Permutation {
 public:
  Permutation(int64_t n, uint64_t seed, uint64_t stream) : n_(n), key_(mix(mix(seed) ^ stream)) {
    while ((uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(n)) ++half_bits_;
  }
  int64_t size() const { return n_; }
  // The element at a position, 0 <= position < n.
  int64_t operator[](int64_t position) const {
    auto x = static_cast<uint64_t>(position);
    do {
      x = encrypt(x);
    } while (x >= static_cast<uint64_t>(n_));
    return static_cast<int64_t>(x);
  }

 private:
  uint64_t encrypt(uint64_t x) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = x >> half_bits_;
    uint64_t right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (mix(key_ ^ (round << 56) ^ right) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  int64_t n_;
  uint64_t key_;
  int half_bits_ = 1;
};

}  // namespace reynard::data
