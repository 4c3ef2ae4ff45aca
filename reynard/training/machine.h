#pragma once
// What run.json says about where a run was made.

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>

namespace reynard::training {

// {"cpu", "cores", "threads", "omp_wait_policy", "isa", "torch"} and, when it ran there, "gpu"
nlohmann::ordered_json machine_description(at::Device device);
// `git describe` of the checkout that the program was built in, "unknown" where there is none.
std::string git_revision();
// That of the checkout that the folder belongs to.
std::string git_revision(const std::filesystem::path& folder);

}  // namespace reynard::training
