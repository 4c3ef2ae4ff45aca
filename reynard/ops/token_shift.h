#pragma once
// Data-dependent token shift of keys and values (FoX Pro, KV-shift). Restarts at sequence starts.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

// y_t = a_t * x_{t-1} + (1 - a_t) * x_t with a = sigmoid(shift_logit), per head; x before the first
// token of a sequence is `previous` for that sequence, or zero.
//   x           (N, G, D)   N tokens of all sequences, one after the other; or the same as (N, G D)
//   shift_logit (N, G)      any float dtype; sigmoid in f32
//   starts      (S) i64     index of each sequence's first token, ascending, starts[0] = 0; checked
//                           on the CPU only: reading it on a GPU would wait for the GPU
//   previous    (S, G, D) or undefined: the last raw x of each sequence so far (decoding); (S, G D)
//               if x is (N, G D)
// The result has the shape of x. Differentiable in x and shift_logit.
at::Tensor token_shift(const at::Tensor& x,
                       const at::Tensor& shift_logit,
                       const at::Tensor& starts,
                       const at::Tensor& previous = {});

}  // namespace reynard::ops
