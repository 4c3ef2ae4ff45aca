#include "reynard/tensor/cuda.h"

#include "reynard/tensor/error.h"
#include "reynard/tensor/installation.h"

#include <ATen/Context.h>

#include <dlfcn.h>
#include <string>

namespace reynard::tensor {

void open_cuda_library() {
  static void* const library = [] {
    const std::string path = library_folder() + "/libreynard_cuda.so";
    void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (opened) return opened;
    throw Error("CUDA: " + path + " cannot be opened (" + dlerror() +
                "); build the cuda preset, or use --device cpu");
  }();
  static_cast<void>(library);
}

bool cuda_available() {
  try {
    open_cuda_library();
  } catch (const Error&) {
    return false;
  }
  return at::getNumGPUs() > 0;
}

}  // namespace reynard::tensor
