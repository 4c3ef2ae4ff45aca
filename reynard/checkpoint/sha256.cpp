#include "reynard/checkpoint/sha256.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace reynard::checkpoint {

namespace {

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

void compress_portable(State& state, const unsigned char* data, std::size_t num_blocks) {
  for (; num_blocks > 0; --num_blocks, data += 64) {
    std::array<uint32_t, 64> w;
    for (int t = 0; t < 16; ++t) {
      w[t] = uint32_t{data[4 * t]} << 24 | uint32_t{data[4 * t + 1]} << 16 |
             uint32_t{data[4 * t + 2]} << 8 | uint32_t{data[4 * t + 3]};
    }
    for (int t = 16; t < 64; ++t) {
      const uint32_t a = w[t - 15], b = w[t - 2];
      w[t] = w[t - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[t - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int t = 0; t < 64; ++t) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const State mixed = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += mixed[i];
  }
}

#if defined(__x86_64__)
// The SHA instructions keep the state as (a,b,e,f) and (c,d,g,h), four rounds per key vector.
__attribute__((target("sha,sse4.1"))) void compress_sha_ni(State& state,
                                                           const unsigned char* data,
                                                           std::size_t num_blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data()));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data() + 4));
  const __m128i cdab = _mm_shuffle_epi32(low, 0xB1), efgh = _mm_shuffle_epi32(high, 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; num_blocks > 0; --num_blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int t = 0; t < 16; ++t) {
      __m128i& now = w[t % 4];
      if (t < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * t)),
                               big_endian);
      } else {
        const __m128i last = w[(t + 3) % 4], before = w[(t + 2) % 4];
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(t + 1) % 4]),
                                          _mm_alignr_epi8(last, before, 4));
        now = _mm_sha256msg2_epu32(sum, last);
      }
      const __m128i keyed = _mm_add_epi32(
          now, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRound.data() + 4 * t)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha_ni() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (ebx >> 29 & 1) != 0 && __builtin_cpu_supports("sse4.1");
}
#endif

void compress(State& state, const unsigned char* data, std::size_t num_blocks) {
#if defined(__x86_64__)
  static const bool sha_ni = has_sha_ni();
  if (sha_ni) return compress_sha_ni(state, data, num_blocks);
#endif
  compress_portable(state, data, num_blocks);
}

}  // namespace

void Sha256::update(const void* data, std::size_t bytes) {
  if (bytes == 0) return;  // data may be null
  const auto* input = static_cast<const unsigned char*>(data);
  const std::size_t held = total_bytes_ % 64;
  total_bytes_ += bytes;
  if (held > 0) {
    const std::size_t taken = std::min(bytes, 64 - held);
    std::memcpy(block_.data() + held, input, taken);
    input += taken, bytes -= taken;
    if (held + taken < 64) return;
    compress(state_, block_.data(), 1);
  }
  compress(state_, input, bytes / 64);
  if (bytes % 64 > 0) std::memcpy(block_.data(), input + bytes / 64 * 64, bytes % 64);
}

std::string Sha256::hex() {
  const uint64_t bits = total_bytes_ * 8;
  const std::size_t padding = 1 + (119 - total_bytes_ % 64) % 64;  // then 8 bytes of length
  std::array<unsigned char, 72> tail{};
  tail[0] = 0x80;
  for (int i = 0; i < 8; ++i) {
    tail[padding + i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
  }
  update(tail.data(), padding + 8);
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
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
