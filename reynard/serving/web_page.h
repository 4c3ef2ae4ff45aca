#pragma once
// The web page at `/`: a prompt, the text as it comes, tokens/s and the cache pages that each head
// kept.

#include <string_view>

namespace reynard::serving {

extern const std::string_view kWebPage;

}  // namespace reynard::serving
