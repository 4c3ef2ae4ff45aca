#include "reynard/training/machine.h"

#include "reynard/process/child_process.h"
#include "reynard/tensor/cpu_features.h"
#include "reynard/tensor/device.h"
#include "reynard/tensor/error.h"

#include <ATen/Parallel.h>
#include <torch/headeronly/version.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>

namespace reynard::training {

namespace {

std::string isa() {
  const tensor::CpuFeatures& cpu = tensor::cpu_features();
  return cpu.amx_bf16      ? "amx_bf16"
         : cpu.avx512_bf16 ? "avx512_bf16"
         : cpu.avx512      ? "avx512"
         : cpu.avx2        ? "avx2"
                           : "baseline";
}

}  // namespace

nlohmann::ordered_json machine_description(at::Device device) {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  nlohmann::ordered_json machine = {{"cpu", tensor::cpu_name()},
                                    {"cores", std::thread::hardware_concurrency()},
                                    {"threads", at::get_num_threads()},
                                    {"omp_wait_policy", policy ? policy : "default"},
                                    {"isa", isa()},
                                    {"torch", TORCH_VERSION}};
  if (device.is_cuda()) machine["gpu"] = tensor::gpu_name(device);
  return machine;
}

std::string git_revision() {
  std::error_code unreadable;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  return unreadable ? "unknown" : git_revision(program.parent_path());
}

std::string git_revision(const std::filesystem::path& folder) {
  std::string revision;
  try {
    process::ChildProcess git(
        {.arguments =
             {"git", "-C", folder.string(), "describe", "--always", "--dirty", "--abbrev=12"},
         .read_output = true,
         .errors_file = "/dev/null"});
    for (std::string text = git.read_output(); !text.empty(); text = git.read_output()) {
      revision += text;
    }
    if (git.wait().exit_code != 0) return "unknown";
  } catch (const Error&) {  // there is no git
    return "unknown";
  }
  while (!revision.empty() && revision.back() == '\n') revision.pop_back();
  return revision.empty() ? "unknown" : revision;
}

}  // namespace reynard::training
