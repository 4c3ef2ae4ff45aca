#include "reynard/models/checkpointing.h"

#include "reynard/ops/rows.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>

namespace reynard::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The segment travels as an opaque holder in saved_data.
struct SegmentHolder : torch::CustomClassHolder {
  explicit SegmentHolder(Segment held) : segment(std::move(held)) {}
  Segment segment;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<SegmentHolder>& holder,
                               at::TensorList input_list) {
    const variable_list inputs = input_list.vec();
    context->save_for_backward(inputs);
    context->saved_data["segment"] = c10::IValue::make_capsule(holder);
    return holder->segment(inputs);  // grad mode is off here
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    ops::check_first_derivative("checkpointed");
    const at::AutoGradMode record(true);
    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.is_floating_point()));
    }
    const auto capsule = context->saved_data["segment"].toCapsule();
    const variable_list outputs = static_cast<SegmentHolder&>(*capsule).segment(inputs);
    variable_list roots, root_grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_grads.push_back(grads[i]);
    }
    torch::autograd::backward(roots, root_grads);
    variable_list input_grads = {at::Tensor()};  // of the holder
    for (const at::Tensor& input : inputs) input_grads.push_back(input.grad());
    return input_grads;
  }
};

}  // namespace

std::vector<at::Tensor> checkpointed(const Segment& segment,
                                     const std::vector<at::Tensor>& inputs) {
  return Recomputed::apply(c10::make_intrusive<SegmentHolder>(segment), at::TensorList(inputs));
}

}  // namespace reynard::models
