#pragma once
// The page at `/`: a prompt, the text as it comes, tokens/s and the cache pages that each head
// kept.

#include <string_view>

namespace reynard::serving {

extern const std::string_view kPage;

}  // namespace reynard::serving
