#pragma once
// The memory of a training batch whose rows walk through documents: keys and values of memory
// layers from earlier steps, per row, without gradients (Memorizing Transformer, Wu et al. 2022).
// The trainer owns it; mixers/memory_attention reads it and stages what the step adds.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::models {

// What a tensor of a memory is in a checkpoint: "MICRO_BATCH.memory.LAYER.ROW.KIND".
struct MemoryName {
  int64_t micro_batch = 0;  // of a step
  int64_t layer = 0, row = 0;
  char kind = 'k';  // k: keys, v: values, s: gate sums

  std::string text() const;
  // Nothing for what text() does not write.
  static std::optional<MemoryName> parse(std::string_view text);
};

class BatchMemory {
 public:
  // capacity: newest tokens that each row keeps. across_documents: a document that begins does not
  // clear its row. overlap: last tokens of a row with which its next one begins; they do not join.
  BatchMemory(int64_t rows, int64_t capacity, bool across_documents, int64_t overlap = 0);

  // Before the forward pass. starts (B, T) bool: where documents begin. most: newest tokens of its
  // memory that each row sees in this step; empty: all.
  void begin_step(const at::Tensor& starts, std::vector<int64_t> most = {});

  // What the rows see of a layer's memory, aligned at their newest tokens: k, v (B, M, G, D) and,
  // where they were staged, sums (B, H, M) f64 from the step's begin. Undefined where that is
  // nothing.
  struct View {
    at::Tensor k, v, sums;
    int64_t size() const { return k.defined() ? k.size(1) : 0; }
  };
  View view(int64_t layer) const;
  // The first entry of the view that each of the tokens [begin, begin + size) of the rows sees:
  // (B, size) i32. Tokens after a document's start see none.
  at::Tensor first_key(int64_t layer, int64_t begin, int64_t size) const;

  // k, v (B, T, G, D) of this step and, where gates act on a memory, their sums (B, H, T) from the
  // step's begin; staging a layer again (recomputed activations) replaces them.
  void stage(int64_t layer, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sums = {});
  // After the backward pass: what was staged joins the memory.
  void commit();
  // After a step whose numbers were not finite: nothing is remembered any more.
  void clear();

  struct Saved {
    MemoryName name;  // of micro-batch 0: a memory does not know whose it is
    at::Tensor tensor;
  };
  std::vector<Saved> state() const;
  // Throws reynard::Error for what is not of such rows, and where tensors are missing.
  void restore(std::span<const Saved> saved, at::Device device);

 private:
  struct Entries {
    at::Tensor k, v;  // (M, G, D), oldest first; undefined when empty
    at::Tensor sums;  // (M, H) f64: gate sums, 0 where the next step begins; undefined without

    int64_t size() const { return k.defined() ? k.size(0) : 0; }
    // Whether there are as many of each, or none at all.
    bool is_whole(bool with_sums) const;
    // The newest `capacity` tokens are kept.
    void add(const Entries& newer, int64_t capacity);
  };
  struct Staged {
    at::Tensor k, v;  // (B, T, G, D)
    at::Tensor sums;  // (B, H, T) f64 from the step's begin, or undefined
  };
  // Entries of a row's memory that this step sees.
  int64_t seen(int64_t row, const Entries& entries) const;
  // The most that a row sees.
  int64_t most_seen(const std::vector<Entries>& rows) const;

  int64_t capacity_;
  bool across_documents_;
  int64_t overlap_;
  std::vector<int64_t> most_;  // per row; empty: all
  // Per row of this step, T and -1: none; the last of those that leave it.
  std::vector<int64_t> first_start_, last_start_;
  std::map<int64_t, std::vector<Entries>> layers_;
  std::map<int64_t, Staged> staged_;
  int64_t rows_;
};

}  // namespace reynard::models
