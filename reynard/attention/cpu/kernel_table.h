#pragma once
// The table of one tile struct, filled from the templates: the last line of each kernels_*.cpp.

#include "reynard/attention/cpu/backward.h"
#include "reynard/attention/cpu/decode_run.h"
#include "reynard/attention/cpu/forward.h"
#include "reynard/attention/cpu/row_norms.h"

namespace reynard::attention::cpu {
namespace {

template <class Tiles>
KernelTable make_kernel_table() {
  using Value = typename Tiles::Value;
  static_assert(kQueriesPerStart % Tiles::kQueries == 0);
  static_assert(Tiles::kKeys % 64 == 0 && Tiles::kKeys % Tiles::kKeyStep == 0);
  KernelTable table;
  table.queries_per_block = Tiles::kQueries;
  table.keys_per_block = Tiles::kKeys;
  table.key_block_bytes = [](int64_t head_dim) -> int64_t {
    return key_block_values<Tiles>(head_dim) * sizeof(Value);
  };
  table.query_block_bytes = [](int64_t head_dim) -> int64_t {
    return query_block_values<Tiles>(head_dim) * sizeof(Value);
  };
  table.query_limits_bytes = sizeof(QueryLimits<Tiles::kQueries>);
  table.padded_head_dim = Tiles::padded;
  table.forward_scratch_bytes = ForwardScratch<Tiles>::bytes;
  table.backward_scratch_bytes = BackwardScratch<Tiles>::bytes;
  table.pack_keys = pack_keys<Tiles>;
  table.forward = forward<Tiles>;
  table.forward_nearest = forward_nearest<Tiles>;
  table.forward_rest = forward_rest<Tiles>;
  table.backward = backward<Tiles>;
  table.largest_squares = largest_squares;
  table.decode_scratch_bytes = DecodeScratch::bytes;
  table.decode = decode_run<Follows>;
  table.decode_through_second_level = decode_run<TakesFewLines>;
  return table;
}

}  // namespace
}  // namespace reynard::attention::cpu
