#pragma once
// Tells failures to allocate from other exceptions: libtorch throws them under several types, one
// of them without a type of its own.

#include <exception>

namespace reynard::tensor {

bool is_out_of_memory(const std::exception& error);
// Whether it is the memory of a GPU that ran out.
bool is_out_of_gpu_memory(const std::exception& error);

}  // namespace reynard::tensor
