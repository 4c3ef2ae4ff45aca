#pragma once
// One pass of the exact search over keys on a GPU: every query's keys that reach its threshold are
// appended to its list of candidates; scores exist in registers only. Plain pointers, no torch.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::knn::cuda {

// A scored key as one number: larger is before() in order.h. Upper half: the score's bits, ordered
// as integers; lower half: 2^32 - 1 - place, the key's place among those of its row in ids' order.
using Code = int64_t;
inline constexpr Code kNoCode = INT64_MIN;

inline constexpr int kBlockKeys = 128;  // keys that are sampled, or not, together

// The keys that a group of queries shares: one head of one row.
struct KeyGroup {
  const void* keys = nullptr;  // (S, D) bf16 | f32
  int64_t stride = 0;          // of a slot, in elements
  int64_t slots = 1;           // S
  int64_t first_slot = 0;      // of place 0
  int64_t size = 0;            // places
  int64_t first_id = 0;        // of place 0
};

struct FilterTask {
  static constexpr int kFewGroups = 8;  // 384 bytes of the 4 KB that arguments of a kernel have

  KeyGroup few_groups[kFewGroups];                  // (B * G), where they are so few
  const KeyGroup* many_groups = nullptr;            // else: (B * G), on the device
  int num_rows = 1, num_key_heads = 1, repeat = 1;  // B, G and R = H / G
  int num_tokens = 1, head_dim = 1;                 // Tq, D
  int queries_per_group = 1;                        // Tq R
  int64_t most_keys = 0;                            // of any group
  bool bf16_keys = false;
  bool aligned = false;              // rows of keys begin at multiples of 16 bytes and fill them
  const float* queries = nullptr;    // (B, Tq, H, D)
  const float* margins = nullptr;    // (B, Tq, H): error of an approximate score / largest |k_d|
  const Code* thresholds = nullptr;  // (B, Tq, H): candidates are at least this
  Code* candidates = nullptr;        // (B, Tq, H, capacity)
  int* counts = nullptr;             // (B, Tq, H): candidates found, stored or not
  int capacity = 0;
  int sample = 1;      // one of so many blocks of keys, at hashed places; 1: all
  bool sparse = true;  // few keys reach the thresholds; else every key is scored by the definition

  __host__ __device__ const KeyGroup& group(int i) const {
    return many_groups ? many_groups[i] : few_groups[i];
  }
};

// Whether the matrix unit makes approximate scores for sparse tasks like it: it then reads margins.
bool uses_matrix_unit(const FilterTask& task);
void filter(const FilterTask& task, int num_processors, cudaStream_t stream);

// codes (rows, k) -> ids (place + first id; -1: none) and scores by the definition (-inf: none).
struct ResultTask {
  FilterTask search;
  const Code* codes = nullptr;  // (B, Tq, H, k)
  int64_t* ids = nullptr;
  float* scores = nullptr;
  int k = 1;
};
void write_results(const ResultTask& task, cudaStream_t stream);

}  // namespace reynard::knn::cuda
