#pragma once
// JSON files of this and other programs: results, run and model descriptions.

#include <cstdint>
#include <filesystem>

#include <nlohmann/json_fwd.hpp>

namespace reynard::config {

// A JSON file that must hold an object. Throws reynard::Error, naming it, where it cannot be read,
// is larger than this, or holds something else.
nlohmann::json read_json_object(const std::filesystem::path& file,
                                uintmax_t max_bytes = uintmax_t{256} << 20U);

}  // namespace reynard::config
