#include "reynard/generation/generator.h"

#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/models/state.h"
#include "reynard/tensor/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace reynard::generation {

namespace {

void check_request(const models::Decoder& decoder,
                   std::span<const int64_t> prompt,
                   const GenerateOptions& options) {
  using tensor::check_value;
  check_value(!prompt.empty(), "generate", "prompt tokens", int64_t{0}, "at least 1");
  check_value(options.max_tokens >= 0, "generate", "max_tokens", options.max_tokens, ">= 0");
  const int64_t vocabulary = decoder.config().vocab_size;
  for (const int64_t token : prompt) {
    check_value(token >= 0 && token < vocabulary,
                "generate",
                "prompt token",
                token,
                "an id of the model's vocabulary");
  }
}

}  // namespace

std::vector<int64_t> generate(models::Decoder& decoder,
                              std::span<const int64_t> prompt,
                              const GenerateOptions& options) {
  check_request(decoder, prompt, options);
  const at::NoGradGuard no_grad;
  Sampler sampler(options.sampler);
  models::SequenceState state(decoder, models::make_page_pool(decoder));
  models::SequenceState* const states[] = {&state};
  const at::Tensor offsets = at::zeros({1}, at::kLong);
  at::Tensor input = at::tensor(std::vector<int64_t>(prompt.begin(), prompt.end()), at::kLong);
  std::vector<int64_t> written;
  while (static_cast<int64_t>(written.size()) < options.max_tokens) {
    const at::Tensor hidden = decoder.hidden(input, offsets, states);
    const at::Tensor last = at::scalar_tensor(hidden.size(0) - 1, at::kLong).view({1});
    const int64_t token = sampler.next(models::logits(decoder, hidden, last).select(0, 0));
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    written.push_back(token);
    input = at::scalar_tensor(token, at::kLong).view({1});
    if (options.on_token) options.on_token(token);
  }
  return written;
}

}  // namespace reynard::generation
