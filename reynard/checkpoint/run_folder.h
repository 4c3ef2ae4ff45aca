#pragma once
// Where the checkpoints of a run lie in its folder (docs/formats.md). What is in them is of no
// concern here.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace reynard::checkpoint {

// What a run is called: its folder, "." and "runs/fox/" included.
std::string run_name(const std::filesystem::path& run_folder);

// checkpoints/step-000000001234, whether it is there or not.
std::filesystem::path checkpoint_folder(const std::filesystem::path& run_folder, int64_t steps);

// Complete checkpoints, oldest first; their content is not verified. What has another name is none:
// a folder under a temporary name, a copy that somebody made.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_folder);

}  // namespace reynard::checkpoint
