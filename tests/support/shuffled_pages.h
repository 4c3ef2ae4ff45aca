#pragma once
// Pages for the decode kernels that no cache wrote: the keys and values of attention inputs in
// pages in any order.

#include "reynard/attention/page_kernels.h"
#include "tests/support/attention_inputs.h"

namespace reynard::test {

// What the first query of each batch row of `inputs` attends to, gates included: pages that lie in
// any order in a pool twice as large, on the device of the inputs; whatever no token fills is NaN.
// Without norms and masses.
attention::DecodeArguments in_shuffled_pages(const AttentionInputs& inputs);

}  // namespace reynard::test
