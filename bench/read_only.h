#pragma once
// A fresh decoder as `open_model` gives it: what only reads weights multiplies few rows by loops of
// its own (ops/few_row_products.h), what trains them does not.

#include "reynard/models/decoder.h"

namespace reynard::bench {

// Products read the weights in this dtype, f32 or bf16, and nothing needs gradients.
void make_read_only(models::Decoder& decoder, at::ScalarType products);

}  // namespace reynard::bench
