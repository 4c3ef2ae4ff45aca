#pragma once
// A picture of one training step: every operator and kernel with its time and memory.

#include <c10/core/Device.h>

#include <filesystem>

namespace reynard::training {

// Records from its construction to `write`; only one may exist at a time.
class StepProfile {
 public:
  explicit StepProfile(c10::Device device);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Ends the recording and writes it as a Chrome trace (chrome://tracing, ui.perfetto.dev), whole
  // or not at all. Throws reynard::Error where the file cannot be written.
  void write(const std::filesystem::path& path);

 private:
  bool recording_ = true;
};

}  // namespace reynard::training
