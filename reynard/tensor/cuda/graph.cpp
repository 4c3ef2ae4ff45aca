// Records work for libreynard.so, which knows nothing of CUDA.

#include "reynard/tensor/recorded_work.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <map>
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

class Graph : public RecordedWork {
 public:
  Graph(c10::Device device, const std::function<void()>& work) {
    const c10::cuda::CUDAStreamGuard guard(recording_stream(device.index()));
    graph_.capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    try {
      graph_.capture_end();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(failure);
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

const bool kRecorderRegistered = [] {
  register_recorder(
      [](c10::Device device, const std::function<void()>& work) -> std::unique_ptr<RecordedWork> {
        return std::make_unique<Graph>(device, work);
      });
  return true;
}();

}  // namespace

}  // namespace reynard::tensor
