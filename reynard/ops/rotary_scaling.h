#pragma once
// How rotary frequencies are changed for contexts longer than those of pre-training. Plain data;
// what the numbers mean is in rotary.h.

#include "reynard/config/fields.h"

#include <compare>
#include <cstdint>

namespace reynard::ops {

enum class RotaryScalingType {
  kNone,
  kLinear,   // every frequency divided by factor
  kDynamic,  // base grows with the position (NTK-aware)
  kYarn,     // slow pairs divided by factor, fast ones kept; cosines and sines scaled
  kLlama3,   // the same by wavelength, as Llama 3.1
};
inline config::EnumNames<RotaryScalingType> enum_names(RotaryScalingType) {
  return {{RotaryScalingType::kNone, "none"},
          {RotaryScalingType::kLinear, "linear"},
          {RotaryScalingType::kDynamic, "dynamic"},
          {RotaryScalingType::kYarn, "yarn"},
          {RotaryScalingType::kLlama3, "llama3"}};
}

// Of pre-training; times any factor it is within int64.
inline constexpr int64_t kMaxOriginalLength = int64_t{1} << 40;

struct RotaryScaling {
  RotaryScalingType type = RotaryScalingType::kNone;
  double factor = 1;                                 // s
  int64_t original_length = 0;                       // L0; not read by linear
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn: turns within L0
  double attention_factor = 0;  // yarn: of cosines and sines; 0: 0.1 ln(factor) + 1
  bool truncate = true;         // yarn: limits of the ramp are whole pairs

  auto operator<=>(const RotaryScaling&) const = default;
  explicit operator bool() const { return type != RotaryScalingType::kNone; }

  static void fields(auto& self, auto&& field) {
    field("type", self.type, "how frequencies change for long contexts");
    field("factor", self.factor, "how much longer the context is", config::positive);
    field("original_length",
          self.original_length,
          "context of pre-training, tokens (all but linear)",
          config::non_negative);
    field("low_freq_factor", self.low_freq_factor, "llama3: of long wavelengths", config::positive);
    field("high_freq_factor", self.high_freq_factor, "llama3: of short ones", config::positive);
    field("beta_fast", self.beta_fast, "yarn: turns from which pairs are kept", config::positive);
    field("beta_slow", self.beta_slow, "yarn: turns below which they scale", config::positive);
    field("attention_factor",
          self.attention_factor,
          "yarn: scale of cosines and sines; 0: 0.1 ln(factor) + 1",
          config::non_negative);
    field("truncate", self.truncate, "yarn: the ramp begins and ends at whole pairs");
  }
};

}  // namespace reynard::ops
