#pragma once
// Work on a GPU that is recorded once and then launched with one call (a CUDA graph): launching
// hundreds of short kernels one by one takes longer than running them.

#include <c10/core/Device.h>

#include <functional>

namespace reynard::tensor {

// Records what `work` asks of the GPU, and returns what does it on the current stream, each time
// with what the tensors that it reads hold by then: they, and those it made, are where they were,
// and must still exist. `work` must have run before, so that its kernels are loaded, must not wait
// for the GPU and must not copy from host memory. What it allocates lives as long as the recording.
// Throws what `work` throws. Opens libreynard_cuda.so.
std::function<void()> record(c10::Device device, const std::function<void()>& work);

// How libreynard_cuda.so, which knows of CUDA, records; it registers itself while it is loaded.
using Recorder = std::function<void()> (*)(c10::Device device, const std::function<void()>& work);
void register_recorder(Recorder recorder);

}  // namespace reynard::tensor
