# Finds libtorch inside the PyPI wheel `torch` of a Python interpreter and defines
#   torch::core  (torch_cpu, c10: enough for a machine without a GPU)
#   torch::cuda  (torch_cuda, c10_cuda: only where the CUDA part is built)
# The wheel's own CMake files are not used: they fail without a CUDA toolkit.
# Input: REYNARD_PYTHON (optional). Output: TorchWheel_VERSION, TorchWheel_PYTHON, TorchWheel_ROOT.
if(REYNARD_PYTHON)
  set(TorchWheel_PYTHON ${REYNARD_PYTHON})
elseif(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  set(TorchWheel_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
else()
  find_program(TorchWheel_PYTHON python3 REQUIRED)
endif()

execute_process(
  COMMAND ${TorchWheel_PYTHON} -c
    "import importlib.util as u, pathlib as p
spec = u.find_spec('torch')
root = p.Path(spec.origin).parent if spec else ''
version = (root / 'version.py').read_text().split(\"__version__ = '\")[1].split(\"'\")[0] if root else ''
print(root, version, sep=';')"
  OUTPUT_VARIABLE torch_wheel_found
  OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
list(GET torch_wheel_found 0 TorchWheel_ROOT)
list(GET torch_wheel_found 1 torch_wheel_version)
string(REGEX MATCH "^[0-9.]*[0-9]" TorchWheel_VERSION "${torch_wheel_version}")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchWheel
  REQUIRED_VARS TorchWheel_ROOT
  VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE "no torch in ${TorchWheel_PYTHON} - run scripts/bootstrap or set REYNARD_PYTHON")

if(TorchWheel_FOUND AND NOT TARGET torch::core)
  # Libraries that libtorch_cpu needs are beside the wheel: nvidia/cu13/lib (cudart, cupti).
  get_filename_component(torch_wheel_site ${TorchWheel_ROOT} DIRECTORY)
  set(torch_wheel_nvidia ${torch_wheel_site}/nvidia/cu13/lib)
  foreach(lib c10 torch_cpu c10_cuda torch_cuda)
    add_library(torch::${lib} SHARED IMPORTED)
    set_target_properties(
      torch::${lib} PROPERTIES IMPORTED_LOCATION ${TorchWheel_ROOT}/lib/lib${lib}.so)
  endforeach()
  add_library(torch::core INTERFACE IMPORTED)
  target_include_directories(
    torch::core SYSTEM INTERFACE ${TorchWheel_ROOT}/include
                                 ${TorchWheel_ROOT}/include/torch/csrc/api/include)
  target_link_libraries(torch::core INTERFACE torch::torch_cpu torch::c10)
  target_link_options(
    torch::core INTERFACE -Wl,-rpath,${TorchWheel_ROOT}/lib -Wl,-rpath,${torch_wheel_nvidia}
    -Wl,-rpath-link,${TorchWheel_ROOT}/lib -Wl,-rpath-link,${torch_wheel_nvidia})
  add_library(torch::cuda INTERFACE IMPORTED)
  # Without --no-as-needed the linker drops libtorch_cuda, and with it the CUDA registrations.
  target_link_libraries(torch::cuda INTERFACE torch::core -Wl,--no-as-needed torch::torch_cuda
                                              torch::c10_cuda -Wl,--as-needed)
endif()
