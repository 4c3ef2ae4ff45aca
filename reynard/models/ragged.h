#pragma once
// Checks a ragged batch on the CPU and derives what every layer reads of it, on the given device.

#include "reynard/models/decoder_config.h"
#include "reynard/models/mixer.h"

#include <optional>
#include <span>

namespace reynard::models {

// Arguments as Decoder::hidden. Throws reynard::Error naming the argument for a wrong shape, dtype
// or value (token ids outside the vocabulary too).
Ragged make_ragged(const at::Tensor& tokens,
                   const at::Tensor& offsets,
                   std::span<SequenceState* const> states,
                   const DecoderConfig& config,
                   at::Device device,
                   const std::optional<Crossbatch>& crossbatch = {});

}  // namespace reynard::models
