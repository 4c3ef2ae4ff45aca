#pragma once
// The mixers that a decoder can be made of and the checkpoint layouts that it can be read from and
// written to. Adding one is a file pair (or file) and a line in registry.cpp.

#include "reynard/models/decoder_config.h"
#include "reynard/models/families/family.h"
#include "reynard/models/mixer.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace reynard::models {

struct MixerEntry {
  std::string_view name;
  std::unique_ptr<Mixer> (*make)(const DecoderConfig&, Initializer&, int64_t layer);
};

std::span<const MixerEntry> mixers();
// "attention, mamba2": for messages.
std::string mixer_names();
// Throws reynard::Error, listing the names, when there is none of this name.
const MixerEntry& find_mixer(std::string_view name);

std::span<const Family* const> families();
// By config.json's "model_type". Throws reynard::Error, beginning with `where` and listing the
// names, when there is none.
const Family& find_family(std::string_view model_type, const std::string& where);

}  // namespace reynard::models
