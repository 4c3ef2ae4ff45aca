# The cuda preset: checks for the CUDA toolkit and says what is missing.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "the cuda preset needs nvcc 13.0 (CUDA toolkit), which was not found; "
                      "install the toolkit or set CUDACXX=/path/to/nvcc, or build the cpu preset")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_ARCHITECTURES 90a)
enable_language(CUDA)
# CMake 3.25 does not know the option yet.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
find_package(CUDAToolkit 13.0 REQUIRED)
# The runtime library is the one beside the torch wheel: one copy in the process.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
