#pragma once
// The interface between the torch side and the kernels, which are compiled once per instruction set
// and include no torch header: plain parameter structs and a table of functions per path. The torch
// side owns memory and threads; a kernel runs one task on one thread.
//
// Legend: B batch, Tq queries, Tk keys, H query heads, G key/value heads, D head dimension.
// A query block is 64 or 128 queries, a key block 64 or more keys (KernelTable).

#include "reynard/attention/operand.h"

#include <cstdint>

namespace reynard::attention::cpu {

// Rows [begin, end) of some heads of x[b], D values each.
struct Rows {
  Operand x;
  int64_t b = 0, first_head = 0, num_heads = 1, begin = 0, end = 0, D = 0;
};

// Keys [begin, end).
struct KeyRange {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

// One key part. Everything that is not an Operand is contiguous.
struct Problem {
  int64_t B = 0, Tq = 0, Tk = 0, H = 0, G = 0, D = 0;
  Operand q, k, v;
  const double* query_sums = nullptr;  // (B, H, Tq), or null: no bias
  const double* key_sums = nullptr;    // (B, H, Tk), or null
  const int32_t* first_key = nullptr;  // (B, Tq), non-decreasing in Tq, or null: 0
  const int32_t* start = nullptr;      // (B, H, ceil(Tq/128)): keys before it are pruned, or null
  const KeyRange* ranges = nullptr;    // (B, H, N): keys that any query of a block may see
  double scale = 1;
  bool causal = true;  // queries are the last Tq positions of the keys
};

// Keys and values of some (b, g) pairs in the layouts that the matrix units read, in blocks of
// KernelTable::keys_per_block keys (K blocks per pair), padded with zeros.
struct PackedKeys {
  int64_t first_pair = 0, num_pairs = 0;  // pairs are numbered b * G + g
  char* key_rows = nullptr;               // (pairs, K) blocks of [key][d]
  char* value_columns = nullptr;          // (pairs, K) blocks of [d][key], or null: only lse
};

struct ForwardParams {
  Problem problem;
  PackedKeys packed;
  Operand out;           // (B, Tq, H, D); without data only lse is computed
  float* lse = nullptr;  // (B, H, Tq) natural logarithm
};

struct BackwardParams {
  Problem problem;
  Operand dout;                   // (B, Tq, H, D)
  const float* lse = nullptr;     // (B, H, Tq) of all key parts together
  const double* delta = nullptr;  // (B, H, Tq) rowsum(dout * out) - dlse
  Operand dq, dk, dv;             // of queries that see nothing, dq and dquery_sums are not written
  double* dquery_sums = nullptr;  // (B, H, Tq)
  double* dkey_sums = nullptr;    // (B, H, Tk)

  int32_t* turns = nullptr;  // (B, H, N): the key block that adds next to a query block's sums, or
                             // kNotPacked

  // Scratch of the pairs that are worked on, a slot each; N query blocks, H/G heads per pair.
  char* query_limits = nullptr;  // (slots, H/G, N) blocks: bias, lse, delta and limits of the rows
  char* query_lanes = nullptr;   // (slots, H/G, N) blocks: q with queries in the lanes
  char* query_rows = nullptr;    // (slots, H/G, N) blocks: q with dimensions in the lanes
  char* dout_lanes = nullptr;    // likewise for dout
  char* dout_rows = nullptr;
  float* dq_sums = nullptr;    // (slots, H/G, N) blocks of [d][query]
  double* row_sums = nullptr;  // (slots, H/G, N) blocks of [query]: row sums of dS
};

// A key block of a pair (b * G + g). The first that a query block sees packs it; each adds to its
// sums over keys (dq, row sums) in turn, in ascending order, so the result does not depend on who
// runs what. Tasks of a pair have to begin in that order: then one of those that run never waits.
struct BackwardTask {
  int64_t pair = 0, block = 0, slot = 0;
};
constexpr int32_t kNotPacked = -1;

// Consecutive pages of one (sequence, kv head), attended by one query of each head of the group: a
// task of split-KV decode. Pages are read where they lie.
struct PageRun {
  const void* keys = nullptr;    // (P, 64, D) as words (page_words.h), or as rows
  const void* values = nullptr;  // (P, 64, D); null: only the sums of weights are wanted
  bool as_rows = false;
  Element element = Element::kFloat;
  const float* scales = nullptr;   // (P, 2, 64) of rows of int8, keys and values; null: element
  int64_t D = 0, group = 1;        // H/G heads
  const double* sums = nullptr;    // (P, group, 64), or null: no bias
  const int32_t* pages = nullptr;  // (num_pages) ids, of which none that is read is negative
  int64_t num_pages = 0;
  const float* q = nullptr;  // (group, D), values of the element
  double scale = 1;
  const double* query_sums = nullptr;  // (group)
  const KeyRange* ranges = nullptr;    // (group) keys to read, counted from the run's first page
  int32_t next_page = -1;              // asked for at the end: what may be read next; or none
};

// The softmax of a run's keys, not yet normalised: weights are 2^(logit - largest), with logits in
// base 2. Of heads that read no key: -inf, 0 and 0.
struct RunSoftmax {
  float* largest = nullptr;  // (group)
  float* total = nullptr;    // (group)
  float* out = nullptr;      // (group, D)
};

// The kernels of one path for one kind of input. Sizes of blocks and scratch are in bytes.
struct KernelTable {
  int64_t queries_per_block = 0;  // divides 128
  int64_t keys_per_block = 0;     // multiple of 64
  // Bytes of one packed block of keys (or values) and of queries (or dout), and padded D.
  int64_t (*key_block_bytes)(int64_t head_dim) = nullptr;
  int64_t (*query_block_bytes)(int64_t head_dim) = nullptr;
  int64_t query_limits_bytes = 0;
  int64_t (*padded_head_dim)(int64_t head_dim) = nullptr;
  int64_t (*forward_scratch_bytes)(int64_t head_dim) = nullptr;
  int64_t (*backward_scratch_bytes)(int64_t head_dim) = nullptr;

  // Packs key block `block` of a pair for the forward pass.
  void (*pack_keys)(const Problem&, const PackedKeys&, int64_t pair, int64_t block) = nullptr;
  // Computes out and lse of one query block of one head.
  void (*forward)(const ForwardParams&, int64_t b, int64_t h, int64_t query_block, char* scratch) =
      nullptr;
  // The same in two steps, whose keys follow from the first step's lse. First `keys`, up to the
  // last that the block sees: lse of these, and sums that stay in scratch.
  void (*forward_nearest)(const ForwardParams&,
                          int64_t b,
                          int64_t h,
                          int64_t query_block,
                          KeyRange keys,
                          char* scratch) = nullptr;
  // Then `keys`, none or those up to where the first step's begin: out and lse of all.
  void (*forward_rest)(const ForwardParams&,
                       int64_t b,
                       int64_t h,
                       int64_t query_block,
                       KeyRange keys,
                       char* scratch) = nullptr;
  // dk, dv and key sums of a key block, and what it adds to the sums of the query blocks that see
  // it; dq and dquery_sums of those that it is the last to add to.
  void (*backward)(const BackwardParams&, const BackwardTask&, char* scratch) = nullptr;

  // Into largest (num_heads): the largest squared norm of a head's rows, NaN where that of any is.
  void (*largest_squares)(const Rows&, float* largest) = nullptr;

  // Pages of any element.
  int64_t (*decode_scratch_bytes)(int64_t head_dim, int64_t group) = nullptr;
  void (*decode)(const PageRun&, const RunSoftmax&, char* scratch) = nullptr;
  // The same numbers, for processors whose first-level cache takes few lines at once.
  void (*decode_through_second_level)(const PageRun&, const RunSoftmax&, char* scratch) = nullptr;
};

// f32 arithmetic on any input; the bf16 tables read bf16 only.
const KernelTable& portable_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
const KernelTable& avx512_bf16_kernels();
const KernelTable& amx_kernels();

}  // namespace reynard::attention::cpu
