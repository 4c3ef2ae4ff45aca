#include "reynard/tensor/recorded_work.h"

#include "reynard/tensor/cuda.h"

#include <c10/util/Exception.h>

namespace reynard::tensor {

namespace {

Recorder& registered_recorder() {
  static Recorder recorder = nullptr;
  return recorder;
}

}  // namespace

std::unique_ptr<RecordedWork> record(c10::Device device, const std::function<void()>& work) {
  open_cuda_library();
  TORCH_INTERNAL_ASSERT(registered_recorder() != nullptr);
  return registered_recorder()(device, work);
}

void register_recorder(Recorder recorder) {
  registered_recorder() = recorder;
}

}  // namespace reynard::tensor
