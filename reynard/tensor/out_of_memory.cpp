#include "reynard/tensor/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>
#include <stdexcept>
#include <string_view>

namespace reynard::tensor {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error)) return true;
  if (dynamic_cast<const std::length_error*>(&error)) return true;  // beyond what can be addressed
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  if (!torch_error) return false;
  const std::string_view message = torch_error->what_without_backtrace();
  return message.find("DefaultCPUAllocator") != std::string_view::npos ||
         message.find("Storage size calculation overflowed") != std::string_view::npos;
}

bool is_out_of_gpu_memory(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::OutOfMemoryError*>(&error);
  return torch_error &&
         std::string_view(torch_error->what_without_backtrace()).starts_with("CUDA out of memory");
}

}  // namespace reynard::tensor
