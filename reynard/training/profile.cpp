#include "reynard/training/profile.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <filesystem>
#include <set>
#include <system_error>

namespace reynard::training {

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

StepProfile::StepProfile(c10::Device device) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     /*report_input_shapes=*/true,
                                                     /*profile_memory=*/true);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION});
}

StepProfile::~StepProfile() {
  if (recording_) profiler::disableProfiler();
}

void StepProfile::write(const std::string& path) {
  recording_ = false;
  const auto trace = profiler::disableProfiler();
  // The name decides the format: it must end in .json.
  const std::string temporary = path + ".tmp.json";
  trace->save(temporary);
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) throw Error(fmt::format("{}: cannot write: {}", path, error.message()));
}

}  // namespace reynard::training
