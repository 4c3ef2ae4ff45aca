#pragma once
// What a text's cache holds, as JSON: for answers of the server and for `reynard generate --stats`.

#include "reynard/models/state.h"

#include <nlohmann/json_fwd.hpp>

namespace reynard::serving {

// Where nothing was evicted, the share is null.
nlohmann::ordered_json cache_json(const models::CacheUse& use);

}  // namespace reynard::serving
