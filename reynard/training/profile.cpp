#include "reynard/training/profile.h"

#include "reynard/checkpoint/atomic_file.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <filesystem>
#include <set>

namespace reynard::training {

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

StepProfile::StepProfile(c10::Device device) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) {
    activities.insert(ActivityType::CUDA);
  } else {
    // Above errors: that there is no GPU would be one.
    setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  }
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     /*report_input_shapes=*/true,
                                                     /*profile_memory=*/true);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION});
}

StepProfile::~StepProfile() {
  if (recording_) profiler::disableProfiler();
}

void StepProfile::write(const std::filesystem::path& path) {
  recording_ = false;
  const auto trace = profiler::disableProfiler();
  // The name decides the format: it must end in .json.
  const std::filesystem::path temporary = checkpoint::temporary_name(path, ".json");
  trace->save(temporary.string());
  checkpoint::commit_file(temporary, path);
}

}  // namespace reynard::training
