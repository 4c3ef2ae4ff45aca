#include "reynard/training/machine.h"

#include "reynard/tensor/cpu_features.h"
#include "reynard/tensor/device.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

namespace reynard::training {

namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

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
  nlohmann::ordered_json machine = {{"cpu", cpu_name()},
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
  std::string folder = program.parent_path().string();
  if (unreadable || folder.find('\'') != std::string::npos) return "unknown";
  const std::string command =
      fmt::format("git -C '{}' describe --always --dirty --abbrev=12 2>/dev/null", folder);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  char line[128] = "";
  if (!pipe || !std::fgets(line, sizeof line, pipe.get())) return "unknown";
  std::string revision = line;
  while (!revision.empty() && revision.back() == '\n') revision.pop_back();
  return revision.empty() ? "unknown" : revision;
}

}  // namespace reynard::training
