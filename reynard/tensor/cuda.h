#pragma once
// The CUDA part of the library. Nothing here or in libreynard.so links to CUDA: what runs on a GPU
// lies in libreynard_cuda.so, which is opened when the first CUDA tensor or --device asks for it.

#include <c10/util/Exception.h>

#include <optional>

namespace reynard::tensor {

// Opens libreynard_cuda.so, which lies beside libreynard.so, once; its kernels then register
// themselves. Throws reynard::Error naming the file when it cannot be opened.
void open_cuda_library();

// True when libreynard_cuda.so can be opened and there is a GPU.
bool cuda_available();

// A function (or struct of them) of libreynard_cuda.so, which sets it while it is loaded.
template <class T>
class FromCudaLibrary {
 public:
  void set(T value) { value_ = value; }
  // Opens libreynard_cuda.so and throws like it.
  const T& get() const {
    open_cuda_library();
    TORCH_INTERNAL_ASSERT(value_);
    return *value_;
  }

 private:
  std::optional<T> value_;
};

}  // namespace reynard::tensor
