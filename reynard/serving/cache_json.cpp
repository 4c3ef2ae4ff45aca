#include "reynard/serving/cache_json.h"

#include "reynard/config/json_file.h"

#include <nlohmann/json.hpp>

namespace reynard::serving {

nlohmann::ordered_json cache_json(const models::CacheUse& use) {
  return {{"pages_kept", use.pages_kept},
          {"pages_seen", use.pages_seen},
          {"page_bytes", use.page_bytes},
          {"bytes_kept", use.bytes_kept()},
          {"bytes_saved", use.bytes_saved()},
          {"log_evicted_share", config::number_or_null(use.log_evicted_share)}};
}

}  // namespace reynard::serving
