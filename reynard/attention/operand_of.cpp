#include "reynard/attention/operand_of.h"

#include <c10/util/Exception.h>

namespace reynard::attention {

Element element_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Element::kFloat;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kHalf:
      return Element::kHalf;
    default:
      TORCH_INTERNAL_ASSERT(false, "kernels of attention: dtype ", x.scalar_type());
  }
}

Operand operand_of(const at::Tensor& x) {
  TORCH_INTERNAL_ASSERT(x.dim() == 4 && (x.size(3) <= 1 || x.stride(3) == 1));
  return {
      const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2), element_of(x)};
}

}  // namespace reynard::attention
