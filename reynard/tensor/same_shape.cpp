#include "reynard/tensor/same_shape.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace reynard::tensor {

void check_same_shape(std::string_view op,
                      std::string_view arg,
                      const at::Tensor& t,
                      std::string_view other_arg,
                      const at::Tensor& other) {
  if (t.defined() && t.sizes() == other.sizes()) return;
  throw Error(fmt::format(
      "{}: {} {}; expected that of {}, [{}]",
      op,
      arg,
      t.defined() ? fmt::format("has shape [{}]", fmt::join(t.sizes(), ", ")) : "is undefined",
      other_arg,
      fmt::join(other.sizes(), ", ")));
}

}  // namespace reynard::tensor
