#pragma once
// Gated activations: SwiGLU of the MLP, sigmoid or silu gates of the attention output.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

enum class Activation { kSilu, kSigmoid };

// act(gate) * up for gate_up = [gate | up] along the last dimension: (N, 2I) -> (N, I). Product in
// f32, rounded once. Differentiable; the backward recomputes the product.
at::Tensor gated_act(const at::Tensor& gate_up, Activation act);

// act(gate) * x, same shapes, product in f32, rounded once. Differentiable.
at::Tensor gate_mul(const at::Tensor& x, const at::Tensor& gate, Activation act);

}  // namespace reynard::ops
