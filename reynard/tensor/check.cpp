#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/ScalarType.h>

#include <vector>

namespace reynard::tensor {

namespace {

std::string dim_text(const Dim& dim) {
  return dim.size < 0       ? std::string(dim.name)
         : dim.name.empty() ? std::to_string(dim.size)
                            : fmt::format("{} = {}", dim.name, dim.size);
}

// "has shape [2, 512, 3, 64]"
std::string shape_text(const at::Tensor& t) {
  return t.defined() ? fmt::format("has shape [{}]", fmt::join(t.sizes(), ", ")) : "is undefined";
}

}  // namespace

void check_shape(std::string_view op,
                 std::string_view arg,
                 const at::Tensor& t,
                 std::initializer_list<Dim> expected) {
  bool same = t.defined() && t.dim() == static_cast<int64_t>(expected.size());
  int64_t axis = 0;
  for (const Dim& dim : expected) {
    if (!same) break;
    same = dim.size < 0 || t.size(axis) == dim.size;
    ++axis;
  }
  if (same) return;
  std::vector<std::string> wanted;
  for (const Dim& dim : expected) wanted.push_back(dim_text(dim));
  throw Error(
      fmt::format("{}: {} {}; expected [{}]", op, arg, shape_text(t), fmt::join(wanted, ", ")));
}

void check_same_shape(std::string_view op,
                      std::string_view arg,
                      const at::Tensor& t,
                      std::string_view other_arg,
                      const at::Tensor& other) {
  if (t.defined() && t.sizes() == other.sizes()) return;
  throw Error(fmt::format("{}: {} {}; expected that of {}, [{}]",
                          op,
                          arg,
                          shape_text(t),
                          other_arg,
                          fmt::join(other.sizes(), ", ")));
}

void check_dtype(std::string_view op,
                 std::string_view arg,
                 const at::Tensor& t,
                 std::initializer_list<at::ScalarType> allowed) {
  std::vector<std::string> names;
  for (const at::ScalarType type : allowed) {
    if (t.scalar_type() == type) return;
    names.emplace_back(c10::toString(type));
  }
  throw Error(fmt::format("{}: {} has dtype {}; expected {}{}",
                          op,
                          arg,
                          c10::toString(t.scalar_type()),
                          names.size() > 1 ? "one of " : "",
                          fmt::join(names, ", ")));
}

void check_device(std::string_view op,
                  std::string_view arg,
                  const at::Tensor& t,
                  std::string_view other_arg,
                  at::Device device) {
  if (!t.defined() || t.device() == device) return;
  fail(op,
       fmt::format("device of {}", arg),
       t.device().str(),
       fmt::format("that of {}: {}", other_arg, device.str()));
}

void fail(std::string_view op,
          std::string_view arg,
          const std::string& value,
          std::string_view requirement) {
  throw Error(fmt::format("{}: {} = {}; expected {}", op, arg, value, requirement));
}

}  // namespace reynard::tensor
