#pragma once
// Writes text with a model: prompt in, tokens out, one after the other.

#include "reynard/generation/sampler.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace reynard::models {
class Decoder;
}

namespace reynard::generation {

struct GenerateOptions {
  int64_t max_tokens = 256;
  SamplerOptions sampler = {};
  std::vector<int64_t> stop = {};              // ids that end the text; not part of it
  std::function<void(int64_t)> on_token = {};  // called with every token as it is chosen
};

// The tokens after the prompt. Throws reynard::Error for an empty prompt, an id outside the
// vocabulary or max_tokens < 0.
std::vector<int64_t> generate(models::Decoder& decoder,
                              std::span<const int64_t> prompt,
                              const GenerateOptions& options);

}  // namespace reynard::generation
