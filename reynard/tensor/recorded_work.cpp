#include "reynard/tensor/recorded_work.h"

#include "reynard/tensor/cuda.h"

namespace reynard::tensor {

namespace {

constinit FromCudaLibrary<Recorder> registered_recorder;

}  // namespace

std::function<void()> record(c10::Device device, const std::function<void()>& work) {
  return registered_recorder.get()(device, work);
}

void register_recorder(Recorder recorder) {
  registered_recorder.set(recorder);
}

}  // namespace reynard::tensor
