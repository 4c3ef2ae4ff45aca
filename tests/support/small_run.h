#pragma once
// A run folder of a small random model and a text to measure it on.

#include <cstdint>
#include <filesystem>

namespace reynard::test {

// Writes folder/run (a model of bytes, "trained" at 64 tokens, named "small") and folder/text.txt.
void write_small_run(const std::filesystem::path& folder, int64_t num_layers = 1);

}  // namespace reynard::test
