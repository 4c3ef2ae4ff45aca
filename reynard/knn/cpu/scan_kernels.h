#pragma once
// The loops of a scan: scores of a block of keys, approximate but with a known error, and which of
// them reach a threshold. Compiled once per instruction set (path.h). Plain data only.

#include <cstdint>

namespace reynard::knn::cpu {

inline constexpr int64_t kQueryLanes = 16;  // queries that are scored together
inline constexpr int64_t kDepthStep = 32;   // rows of a block are zero-padded to multiples of it
inline constexpr int64_t kKeyStep = 64;     // sizes of blocks are multiples of it

// Keys as they lie in memory, or a padded copy.
struct KeyBlock {
  const void* keys = nullptr;  // (size, depth) f32 or bf16
  int64_t stride = 0;          // between keys, in elements
  int64_t size = 0;            // a multiple of kKeyStep
  int64_t depth = 0;           // a multiple of kDepthStep
};

// Coded keys (key_codes.h): whole groups of slots.
struct CodeBlock {
  const uint8_t* upper = nullptr;  // (size / 16, depth / 8, 16, 4)
  const float* scales = nullptr;   // (size)
  int64_t size = 0;                // a multiple of 16
  int64_t depth = 0;               // a multiple of 64
};

// A coded query. Products with codes are counted twice, so that the middle of what a lower half
// may be, 7.5, gives integers.
struct CodeQuery {
  const int8_t* codes = nullptr;  // (depth), at a multiple of 64
  int64_t depth = 0;
  int32_t sum = 0;  // of the codes
};

// scale_i (factor product_i + error) + smallest is what the score of key i can reach.
struct CodeBound {
  float factor = 0, error = 0, smallest = 0;
};

// What one instruction set has for keys of one dtype. The error of a score, against the exact inner
// product of key and packed query, is that of at most `depth` rounded f32 additions and products in
// some order; with flushes_denormals, numbers below 2^-126 may count as zero.
struct ScanKernels {
  // Bits of the largest |k_d| of the block as f32: those of an infinity or NaN if there is one.
  uint32_t (*largest)(const KeyBlock& block) = nullptr;

  // Null, or: score_many wants the keys as (size, depth) f32.
  void (*widen)(const KeyBlock& block, float* keys) = nullptr;

  bool packs_bf16 = false;  // packed queries are bf16: what is packed must be representable
  bool flushes_denormals = false;
  // One query (depth), or kQueryLanes of them (kQueryLanes, depth). Packed they take at most as
  // many bytes, and lie at a multiple of 64.
  void (*pack_one)(const float* query, int64_t depth, void* packed) = nullptr;
  void (*pack_many)(const float* queries, int64_t depth, void* packed) = nullptr;
  // scores (size), or (size, kQueryLanes). For one query returns what `largest` does, so that
  // memory is read once.
  uint32_t (*score_one)(const KeyBlock& block, const void* packed, float* scores) = nullptr;
  void (*score_many)(const KeyBlock& block, const void* packed, float* scores) = nullptr;

  // Writes the indices of scores that are not below the threshold (NaN is not), returns how many.
  // Index of (size, kQueryLanes) scores: key * kQueryLanes + lane, a threshold per lane.
  int64_t (*reach_one)(const float* scores,
                       int64_t size,
                       float threshold,
                       int32_t* found) = nullptr;
  int64_t (*reach_many)(const float* scores,
                        int64_t size,
                        const float* thresholds,
                        int32_t* found) = nullptr;
};

// What it has for codes of keys; null: keys are read instead.
struct CodeKernels {
  // Writes the indices of the keys that can reach the threshold and twice their products with a
  // query, lower halves counted as 7.5; returns how many.
  int64_t (*reach)(const CodeBlock& block,
                   const CodeQuery& query,
                   const CodeBound& bound,
                   float threshold,
                   int32_t* found,
                   int32_t* products) = nullptr;
  // Puts the lower halves (depth / 2) of some keys into such products.
  void (*refine)(const uint8_t* const* lower,
                 int64_t count,
                 const CodeQuery& query,
                 int32_t* products) = nullptr;
};

// For bf16 keys, for f32 keys, and for codes of both.
struct ScanTables {
  ScanKernels bf16, f32;
  CodeKernels codes = {};
};

ScanTables portable_scan();
ScanTables avx2_scan();
ScanTables avx512_scan();
ScanTables avx512_bf16_scan();
ScanTables amx_scan();

CodeKernels avx2_codes();
CodeKernels avx512_vnni_codes();

}  // namespace reynard::knn::cpu
