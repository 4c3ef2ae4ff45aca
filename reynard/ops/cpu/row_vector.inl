// The f32 lanes of one register on GCC's vector extensions: of AVX-512, AVX2 or SSE. (Longer
// vectors than the registers are kept in memory by GCC.) Included by row_kernels.inl and
// product_kernels.inl inside an anonymous namespace. Everything is inlined: a call would pass
// vectors by an ABI that depends on the instruction set.
#define REYNARD_INLINE inline __attribute__((always_inline))

// The instruction set must come as options of the including file: after a target pragma GCC 12
// defines none of these macros.
#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

using Vector = float __attribute__((vector_size(kLanes * 4)));
using Bits = uint32_t __attribute__((vector_size(kLanes * 4)));
using HalfBits = uint16_t __attribute__((vector_size(kLanes * 2)));

using BF16 = uint16_t;

REYNARD_INLINE Vector load(const float* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
// GCC 12 makes two conversions of half a register of __builtin_convertvector.
REYNARD_INLINE Vector load(const BF16* p) {
#if defined(__AVX512F__)
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return reinterpret_cast<Vector>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#elif defined(__AVX2__)
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#else
  HalfBits half;
  __builtin_memcpy(&half, p, sizeof half);
  return reinterpret_cast<Vector>(__builtin_convertvector(half, Bits) << 16);
#endif
}
REYNARD_INLINE void store(float* p, Vector v) {
  __builtin_memcpy(p, &v, sizeof v);
}
// To nearest, ties to even. The instruction makes 0 of values below 2^-126, which products of bf16
// read as 0 too.
REYNARD_INLINE void store(BF16* p, Vector v) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
#else
  const Bits bits = reinterpret_cast<Bits>(v);
  Bits rounded = (bits + (((bits >> 16) & 1U) + 0x7fffU)) >> 16;
  const Bits quiet_nan = Bits{} + 0x7fc0U;
  rounded = v != v ? quiet_nan : rounded;
  const HalfBits half = __builtin_convertvector(rounded, HalfBits);
  __builtin_memcpy(p, &half, sizeof half);
#endif
}

// The first `count` lanes; the others are 0.
template <class Element>
REYNARD_INLINE Vector load(const Element* p, int64_t count) {
  if (count >= kLanes) return load(p);
  Element padded[kLanes] = {};
  __builtin_memcpy(padded, p, count * sizeof(Element));
  return load(padded);
}
template <class Element>
REYNARD_INLINE void store(Element* p, Vector v, int64_t count) {
  if (count >= kLanes) return store(p, v);
  Element padded[kLanes];
  store(padded, v);
  __builtin_memcpy(p, padded, count * sizeof(Element));
}

// Calls body(i, count) for each vector of [0, width). What whole vectors need is known while this
// is compiled: only the last one asks how many lanes there are.
template <class Body>
REYNARD_INLINE void for_vectors(int64_t width, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, kLanes);
  if (i < width) body(i, width - i);
}
#define REYNARD_VECTOR_BODY [&](int64_t i, int64_t count) __attribute__((always_inline))

REYNARD_INLINE Vector broadcast(float x) {
  return Vector{} + x;
}

// Pairwise, in a fixed order: halves are added, in registers.
REYNARD_INLINE float sum_of_four(float __attribute__((vector_size(16))) v) {
  return (v[0] + v[2]) + (v[1] + v[3]);
}
REYNARD_INLINE float sum_of(Vector v) {
#if defined(__AVX512F__)
  const auto eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(__AVX2__)
  const auto eight = v;
#endif
#if defined(__AVX2__)
  return sum_of_four(__builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                     __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  return sum_of_four(v);
#endif
}
REYNARD_INLINE float max_of(Vector v) {
  float lane[kLanes];
  store(lane, v);
  float largest = lane[0];
  for (int64_t i = 1; i < kLanes; ++i) largest = lane[i] > largest ? lane[i] : largest;
  return largest;
}

// x in [low, high], or NaN.
REYNARD_INLINE Vector clamped(Vector x, float low, float high) {
#if defined(__AVX512F__)
  return _mm512_min_ps(broadcast(high), _mm512_max_ps(broadcast(low), x));
#else
  x = x < broadcast(low) ? broadcast(low) : x;
  return x > broadcast(high) ? broadcast(high) : x;
#endif
}

// e^x to 1 ulp or so in [-87.3, 88.7], e^-87.3 below, infinity above: 1 / (1 + e^-x) is then 0, for
// every gate may be multiplied by it. NaN stays NaN.
REYNARD_INLINE Vector exp_of(Vector x) {
  x = clamped(x, -87.33F, 89.0F);
  const Vector shifter = broadcast(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const Vector shifted = x * 1.44269504F + shifter;
  const Vector n = shifted - shifter;
  const Vector r = (x - n * 0.693359375F) + n * 2.12194440e-4F;  // n ln 2 in two parts
  Vector p = broadcast(1.9875691500e-4F);                        // Cephes expf
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  // Two factors 2^(n/2): 2^n itself leaves the exponent range at both ends.
  const Bits whole = reinterpret_cast<Bits>(shifted) - 0x4b400000U;
  using Signed = int32_t __attribute__((vector_size(kLanes * 4)));
  const Signed first = reinterpret_cast<Signed>(whole) >> 1;
  const Signed second = reinterpret_cast<Signed>(whole) - first;
  const Vector scale = reinterpret_cast<Vector>((first + 127) << 23);
  return p * scale * reinterpret_cast<Vector>((second + 127) << 23);
#endif
}

REYNARD_INLINE Vector sigmoid_of(Vector x) {
  return 1.0F / (1.0F + exp_of(-x));
}
