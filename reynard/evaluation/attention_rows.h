#pragma once
// The logits of single queries of an attention layer, as a few dense rows at a time: what maps,
// distances and masses are computed from. The matrix as a whole never exists.

#include "reynard/models/observer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace reynard::evaluation {

// R queries of one head and the keys up to the last of them.
struct AttentionRows {
  int64_t head = 0;
  int64_t first = 0;     // index of the first of these queries in the list that was asked for
  at::Tensor queries;    // (R) i64: positions, ascending
  at::Tensor logits;     // (R, K) f32 with the bias; -inf where a query does not see the key
  at::Tensor log_decay;  // (R, K) f32: c_i - c_j, or 0 where the view says that gates do not act;
                         // -inf where no query of any head can see the key, best or not (top_k);
                         // undefined without gates
};

// Throws reynard::Error, naming the task and the layer (from 0; the message counts from 1), where
// queries, keys or gates of a view are not finite: maps and statistics of such mean nothing.
void check_view_is_finite(const models::AttentionView& view, int64_t layer, std::string_view task);

// The gate sums c (H, N) f64 of a view; undefined without gates.
at::Tensor gate_sums_of(const models::AttentionView& view);

// Calls visit for every head and up to 64 queries at a time. queries (Q) i64, ascending. view lies
// on the CPU.
void for_attention_rows(const models::AttentionView& view,
                        const at::Tensor& queries,
                        const std::function<void(const AttentionRows&)>& visit);

}  // namespace reynard::evaluation
