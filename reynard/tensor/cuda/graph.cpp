// Records work for libreynard.so, which knows nothing of CUDA.

#include "reynard/tensor/recorded_work.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace reynard::tensor {

namespace {

// Work on the default stream cannot be recorded. One for all recordings of a device: matrix
// products have memory of their own for each stream.
c10::cuda::CUDAStream recording_stream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const std::scoped_lock lock(mutex);
  return streams.try_emplace(device, c10::cuda::getStreamFromPool(false, device)).first->second;
}

std::function<void()> record_graph(c10::Device device, const std::function<void()>& work) {
  const auto graph = std::make_shared<at::cuda::CUDAGraph>();
  const c10::cuda::CUDAStreamGuard guard(recording_stream(device.index()));
  graph->capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    graph->capture_end();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  if (failure) std::rethrow_exception(failure);
  return [graph] { graph->replay(); };
}

const bool kRecorderRegistered = [] {
  register_recorder(record_graph);
  return true;
}();

}  // namespace

}  // namespace reynard::tensor
