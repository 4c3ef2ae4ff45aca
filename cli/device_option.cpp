#include "cli/device_option.h"

#include "reynard/tensor/device.h"

#include <CLI/CLI.hpp>

namespace reynard::cli {

void add_device_option(CLI::App& command, std::string& device) {
  CLI::Option* const option = command.add_option(
      "--device",
      device,
      "cpu, cuda (one NVIDIA GPU; CUDA_VISIBLE_DEVICES says which) or auto: a GPU where "
      "there is one and this build can use it");
  option->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  if (!device.empty()) option->capture_default_str();
}

at::Device reading_device(const std::string& device, const std::string& dtype) {
  const bool only_cpu = device == "auto" && dtype == "int8";
  return tensor::choose_device(only_cpu ? "cpu" : device);
}

}  // namespace reynard::cli
