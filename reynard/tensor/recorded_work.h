#pragma once
// Work on a GPU that is recorded once and then launched with one call (a CUDA graph): launching
// hundreds of short kernels one by one takes longer than running them.

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace reynard::tensor {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Does it again on the current stream with what the tensors that it reads hold by then: they, and
  // those it made, are where they were, and must still exist.
  virtual void replay() = 0;
};

// Records what `work` asks of the GPU; nothing is done before replay(). It must have run before,
// so that its kernels are loaded, must not wait for the GPU and must not copy from host memory.
// What it allocates lives as long as the recording. Throws what `work` throws. Opens
// libreynard_cuda.so.
std::unique_ptr<RecordedWork> record(c10::Device device, const std::function<void()>& work);

// How libreynard_cuda.so, which knows of CUDA, records; it registers itself while it is loaded.
using Recorder = std::unique_ptr<RecordedWork> (*)(c10::Device device,
                                                   const std::function<void()>& work);
void register_recorder(Recorder recorder);

}  // namespace reynard::tensor
