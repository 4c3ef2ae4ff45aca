#pragma once
// Errors a user can cause, and shape checks whose message is built from the condition itself, so
// that text and condition cannot disagree. Broken invariants use TORCH_INTERNAL_ASSERT instead.

#include "reynard/tensor/error.h"

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace reynard::tensor {

// One expected dimension: its name in the shape legend and its value; -1 accepts any size.
struct Dim {
  std::string_view name;
  int64_t size = -1;
};

// Throws Error "op: arg has shape [2, 512, 3, 64]; expected [B = 2, Tk, G, D = 64]" unless t has
// exactly these dimensions.
void check_shape(std::string_view op,
                 std::string_view arg,
                 const at::Tensor& t,
                 std::initializer_list<Dim> expected);

// Throws Error "op: gate has shape [2, 3]; expected that of x, [2, 4]" unless the shapes are equal:
// for tensors that go through an operator element by element.
void check_same_shape(std::string_view op,
                      std::string_view arg,
                      const at::Tensor& t,
                      std::string_view other_arg,
                      const at::Tensor& other);

// Throws Error "op: arg has dtype Double; expected one of Float, BFloat16" unless it is one of
// them.
void check_dtype(std::string_view op,
                 std::string_view arg,
                 const at::Tensor& t,
                 std::initializer_list<at::ScalarType> allowed);

// Throws Error "op: device of arg = cpu; expected that of q: cuda:0" unless t lies on it. An
// undefined tensor lies anywhere.
void check_device(std::string_view op,
                  std::string_view arg,
                  const at::Tensor& t,
                  std::string_view other_arg,
                  at::Device device);

// Throws Error "op: arg = value; expected requirement" when the condition does not hold. The value
// is formatted only then.
[[noreturn]] void fail(std::string_view op,
                       std::string_view arg,
                       const std::string& value,
                       std::string_view requirement);

template <class Value>
void check_value(bool holds,
                 std::string_view op,
                 std::string_view arg,
                 const Value& value,
                 std::string_view requirement) {
  if (holds) return;
  if constexpr (std::is_arithmetic_v<Value>) {
    fail(op, arg, std::to_string(value), requirement);
  } else {
    fail(op, arg, std::string(value), requirement);
  }
}

}  // namespace reynard::tensor
