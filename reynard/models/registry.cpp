#include "reynard/models/registry.h"

#include "reynard/models/families/json_fields.h"
#include "reynard/models/mixers/attention.h"
#include "reynard/models/mixers/memory_attention.h"
#include "reynard/models/mixers/transformer_xl.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace reynard::models {

namespace {

template <class MixerType>
std::unique_ptr<Mixer> make(const DecoderConfig& config, Initializer& initializer, int64_t layer) {
  // Most mixers are the same in every layer.
  if constexpr (std::is_constructible_v<MixerType, const DecoderConfig&, Initializer&, int64_t>) {
    return std::make_unique<MixerType>(config, initializer, layer);
  } else {
    return std::make_unique<MixerType>(config, initializer);
  }
}

constexpr std::array kMixers = {
    MixerEntry{"attention", make<AttentionMixer>},
    MixerEntry{"memory_attention", make<MemoryAttentionMixer>},
    MixerEntry{"transformer_xl", make<TransformerXLMixer>},
};

constexpr std::array kFamilies = {
    &kForgettingTransformer,
    &kTransformer,
    &kFlaForgettingTransformer,
    &kFlaTransformer,
    &kLlama,
    &kMistral,
    &kQwen2,
    &kQwen3,
    &kLongLlama,
};

}  // namespace

std::span<const MixerEntry> mixers() {
  return kMixers;
}
std::span<const Family* const> families() {
  return kFamilies;
}

std::string mixer_names() {
  std::string names;
  for (const MixerEntry& entry : kMixers) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  }
  return names;
}

const MixerEntry& find_mixer(std::string_view name) {
  const auto found = std::ranges::find(kMixers, name, &MixerEntry::name);
  if (found != kMixers.end()) return *found;
  throw Error(fmt::format("there is no mixer \"{}\"; there is: {}", name, mixer_names()));
}

const Family& find_family(std::string_view model_type, const std::string& where) {
  std::string names;
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return *family;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", family->model_type);
  }
  throw Error(fmt::format(
      "{}: model_type {} is not supported; supported: {}", where, shown_value(model_type), names));
}

}  // namespace reynard::models
