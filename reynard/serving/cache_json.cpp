#include "reynard/serving/cache_json.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace reynard::serving {

nlohmann::ordered_json cache_json(const models::CacheUse& use) {
  const bool evicted = std::isfinite(use.log_evicted_share);
  return {{"pages_kept", use.pages_kept},
          {"pages_seen", use.pages_seen},
          {"page_bytes", use.page_bytes},
          {"bytes_kept", use.bytes_kept()},
          {"bytes_saved", use.bytes_saved()},
          {"log_evicted_share",
           evicted ? nlohmann::ordered_json(use.log_evicted_share) : nlohmann::ordered_json()}};
}

}  // namespace reynard::serving
