#pragma once
// The paged key/value cache. A page holds 64 consecutive tokens of one (sequence, layer, kv head):
// keys, values, the f64 gate sums of every query head of the group, and the bounds that pruning
// needs. A PagePool owns the storage of pages of one layout and counts their users; a LayerCache is
// what one sequence has seen in one layer, with one page table per kv head, so that a single global
// head does not keep the pages of all the others. Not thread-safe. decode.h attends to it.
//
// Use, per layer of a model (all layers share one pool, since their pages have one layout):
//   auto pool = std::make_shared<PagePool>(PageLayout{.head_dim = D, .group = H / G});
//   LayerCache cache(pool, G);                        // empty
//   cache.append(k, v, log_gate);                     // (T, G, D), (T, G, D), (T, H): T new tokens
//   auto out = paged_attention(q, offsets, caches);   // queries of the tokens just appended
//   LayerCache draft = cache.fork();                  // shares all pages until one of them writes
//   cache.truncate(length);                           // drop rejected tokens
//   cache.evict(bound, -10, cache.length());          // free what can never matter again

#include "reynard/tensor/div_up.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <vector>

namespace reynard::attention {

constexpr int64_t kPageTokens = 64;

// Of the first tokens of a sequence.
constexpr int64_t pages_for(int64_t tokens) {
  return tensor::div_up(tokens, kPageTokens);
}

struct PageLayout {
  int64_t head_dim = 0;
  int64_t group = 1;                  // query heads per key/value head, H / G
  at::ScalarType dtype = at::kFloat;  // of keys and values: f32 | bf16 | f16
  int64_t max_pages = 0;              // pages that may be in use at once; 0: no limit
  at::Device device = at::kCPU;       // where pages lie; tables stay on the host
  // Keys and values are kept as int8, each row with a scale of its own (CPU). dtype is then that of
  // queries and of what is appended.
  bool int8 = false;
};

// Bytes of a key or value and its scale.
int64_t row_bytes(const PageLayout& layout);

// Storage of pages; page ids index the first dimension of its tensors.
class PagePool {
 public:
  explicit PagePool(const PageLayout& layout);

  const PageLayout& layout() const { return layout_; }
  int64_t pages_in_use() const { return in_use_; }
  // How often its tensors have moved.
  int64_t num_growths() const { return num_growths_; }

  // A page with one user, whose content and bounds are set by the first write; behind `last`, the
  // page that is read before it, as far as there is room. Throws reynard::Error when max_pages are
  // in use.
  int32_t allocate(int32_t last = -1);
  // Takes the memory of max_pages at once, so that the pool never grows by copying itself.
  void reserve();
  void retain(int32_t page);
  void release(int32_t page);  // the last user's release frees the page
  int32_t num_users(int32_t page) const { return users_[page]; }
  // A page with one user and the same content; drops one use of the given page.
  int32_t copy_for_writing(int32_t page);

  // (P, 64, D) in the layout's dtype, or int8; as words in host memory (page_kernels.h).
  const at::Tensor& keys() const { return keys_; }
  const at::Tensor& values() const { return values_; }
  const at::Tensor& scales() const { return scales_; }  // (P, 2, 64) f32 of int8 rows: keys, values
  const at::Tensor& sums() const { return sums_; }      // (P, group, 64) f64
  const at::Tensor& norms() const { return norms_; }    // (P) f32: >= every key's norm in the page
  const at::Tensor& masses() const { return masses_; }  // (P, group) f64: >= log sum_j exp(-c_j)

 private:
  std::vector<at::Tensor*> storage();
  void grow(int64_t capacity);
  int32_t free_page(int32_t last) const;

  PageLayout layout_;
  at::Tensor keys_, values_, scales_, sums_, norms_, masses_;
  std::vector<int32_t> users_;
  // Pages come in stretches of neighbours: those without a user, and those with users and room.
  std::vector<int64_t> free_in_stretch_;
  std::set<int32_t> empty_stretches_, begun_stretches_;
  int64_t in_use_ = 0, num_growths_ = 0;
};

// The content of a LayerCache as plain tensors, to be saved or moved to another pool. Evicted
// positions hold zeros.
struct CacheSnapshot {
  at::Tensor k, v;            // (T, G, D) in the pool's dtype; f32 of int8 pages
  at::Tensor sums;            // (H, T) f64
  at::Tensor evicted_pages;   // (G) i64
  at::Tensor evicted_masses;  // (H) f64
  at::Tensor evicted_norms;   // (G) f32
  at::Tensor query_norms;     // (H) f32
  double evicted_share = -std::numeric_limits<double>::infinity();
  int64_t horizon = 0;
};

class LayerCache;

// What a cache may forget: LayerCache::evict.
struct Eviction {
  LayerCache* cache = nullptr;
  at::Tensor logit_bound;
  int64_t horizon = 0;
};

class LayerCache {
 public:
  LayerCache(std::shared_ptr<PagePool> pool, int64_t num_kv_heads);
  LayerCache(LayerCache&&) noexcept = default;
  LayerCache& operator=(LayerCache&& other) noexcept;
  LayerCache(const LayerCache&) = delete;
  LayerCache& operator=(const LayerCache&) = delete;
  ~LayerCache();

  // Shares all pages; whoever appends to a shared page copies it first.
  LayerCache fork() const;

  int64_t length() const { return length_; }  // tokens appended, evicted ones included
  int64_t num_kv_heads() const { return static_cast<int64_t>(pages_.size()); }
  int64_t horizon() const { return horizon_; }  // truncate cannot go below it
  const std::shared_ptr<PagePool>& pool() const { return pool_; }

  //   k, v (T, G, D) in the pool's dtype; log_gate (T, H) f32 <= 0, undefined: no gates (log 1)
  void append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_gate = {});

  // Counts tokens and makes room for them, whose keys and values are written by another
  // (step_tables.h). Throws reynard::Error, changing nothing, where the pool has no pages for them.
  void extend(int64_t tokens);

  // Forgets the tokens from length on. An error below the eviction horizon.
  void truncate(int64_t length);

  // Frees every page that no later query can give more than exp(log_tolerance) of its mass, all
  // evicted keys together (docs/attention.md, eviction). Positions below horizon (at most length())
  // can never be truncated again.
  //   logit_bound (H) f32: |scale q.k| <= bound for every later query too, that is from QK-norm
  //   weights, of keys as the pages keep them (int8: qk_norm_bound_of_int8_keys); with bounds
  //   measured on past queries the result is a heuristic
  // Returns the number of pages dropped by this sequence (other users keep theirs).
  int64_t evict(const at::Tensor& logit_bound, double log_tolerance, int64_t horizon);
  // The same of several caches of one pool, which wait for a GPU's work together. Bounds had better
  // lie on the host.
  static int64_t evict(std::span<const Eviction> evictions, double log_tolerance);

  // Notes how long queries were: q (T, H, D).
  void note_queries(const at::Tensor& q);
  // (H) f32 for evict() where nothing bounds queries to come: scale times the longest query of the
  // head times the longest key, of those noted and appended so far.
  at::Tensor measured_bound(double scale) const;

  // Frees the pages whose keys all lie before position (a sliding window: no query from horizon on
  // sees them). They count as evicted, but not against the tolerance: they would be masked.
  int64_t evict_before(int64_t position, int64_t horizon);

  CacheSnapshot snapshot() const;
  static LayerCache restore(std::shared_ptr<PagePool> pool, const CacheSnapshot& snapshot);

  // Changes whenever a list of pages or what was evicted does; no two caches have the same.
  int64_t version() const { return version_; }
  // For decode.h: pages of one kv head in order; -1 where evicted.
  const std::vector<int32_t>& pages(int64_t kv_head) const { return pages_[kv_head]; }
  // log sum over evicted keys of exp(-c_j), per query head; -inf when none
  const std::vector<double>& evicted_masses() const { return evicted_masses_; }
  // The largest log share of a query's mass that evict() has ever allowed for what it freed; -inf:
  // nothing was.
  double evicted_share() const { return evicted_share_; }
  // Per kv head, at least the norm of every evicted key.
  const std::vector<float>& evicted_norms() const { return evicted_norms_; }
  // Position of the kv head's first token that is not evicted.
  int64_t begin(int64_t kv_head) const {
    return std::min(evicted_pages_[kv_head] * kPageTokens, length_);
  }
  // Keys, values and sums of one kv head from its first page that is not evicted:
  // (T', D), (T', D), (group, T') f64.
  struct Gathered {
    at::Tensor k, v, sums;
    int64_t begin = 0;  // position of the first gathered token
  };
  // Rows of int8 pages come in the pool's dtype.
  Gathered gather(int64_t kv_head) const;
  // The same of n adjacent heads that begin alike: (T', n, D), (T', n, D), (n * group, T').
  Gathered gather(int64_t first_head, int64_t num_heads) const;
  // Their sums alone.
  at::Tensor gather_sums(int64_t first_head, int64_t num_heads) const;

 private:
  at::Tensor kept_pages(int64_t first_head, int64_t num_heads) const;
  at::Tensor sums_of(const at::Tensor& pages, int64_t first_head, int64_t num_heads) const;
  Gathered gather_as(int64_t first_head, int64_t num_heads, at::ScalarType dtype) const;
  void release_all();
  void prepare_pages(int64_t new_length);
  void take_pages(int64_t new_length);
  void change();
  void write(const at::Tensor& k,
             const at::Tensor& v,
             const at::Tensor& log_gate,
             const at::Tensor& token_sums);
  // Bounds of the pages that are not evicted, on the host: all of the pool's where it lies there,
  // which spares copies of what most walks never reach; of a GPU's pool copies.
  struct PageBounds {
    at::Tensor masses, norms;
    std::vector<int64_t> first_rows;  // of a kv head's page 0; empty: rows are page ids
    std::vector<int64_t> ends;        // of a kv head: behind the last page that they are of
    std::vector<double> sums;         // (H) at a position
  };
  struct BoundsWanted {
    const LayerCache* cache = nullptr;
    int64_t position = -1;                                     // of sums; -1: none
    int64_t most_pages = std::numeric_limits<int64_t>::max();  // of a head
  };
  // Of caches of one pool, with one wait for a GPU's work.
  static std::vector<PageBounds> bounds_on_host(std::span<const BoundsWanted> wanted);
  PageBounds bounds_on_host() const;
  bool has_dropped_all(const PageBounds& bounds) const;
  int64_t evict(const PageBounds& bounds,
                const at::Tensor& logit_bound,
                double log_tolerance,
                int64_t horizon);
  int64_t row_of(const PageBounds& bounds, int64_t kv_head, int64_t page_index) const;
  double page_mass(const PageBounds& bounds, int64_t head, int64_t page_index) const;
  float page_norm(const PageBounds& bounds, int64_t kv_head, int64_t page_index) const;
  int64_t prefix_within(const PageBounds& bounds, int64_t head, double limit) const;
  double prefix_mass(const PageBounds& bounds, int64_t head, int64_t num_pages) const;
  int64_t drop_front(int64_t kv_head, int64_t num_pages, const PageBounds& bounds);

  std::shared_ptr<PagePool> pool_;
  std::vector<std::vector<int32_t>> pages_;  // per kv head
  std::vector<int64_t> evicted_pages_;       // per kv head: pages dropped at the front
  std::vector<double> evicted_masses_;       // per query head
  std::vector<float> evicted_norms_;         // per kv head
  std::vector<float> query_norms_;           // per query head; 0: none was noted
  double evicted_share_ = -std::numeric_limits<double>::infinity();
  int64_t length_ = 0;
  int64_t horizon_ = 0;
  int64_t version_ = 0;
};

}  // namespace reynard::attention
