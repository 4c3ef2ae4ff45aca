#pragma once
// What a model has read once, kept for many later texts: the memories of its layers as a folder of
// files (knn/memory.h), layer-N.memory. The local context and gates that decay a memory are not
// kept.

#include "reynard/models/state.h"

#include <filesystem>
#include <string>

namespace reynard::models {

class Decoder;

// Writes the memories of a state. model: names the weights; at most 512 bytes of UTF-8. Throws
// reynard::Error for a decoder without a memory or with one that decays with the distance, and for
// a state that has filled none.
void save_memories(const Decoder& decoder,
                   SequenceState& state,
                   const std::string& model,
                   const std::filesystem::path& folder);

// A state without tokens that has them in its memories, for SequenceState::restore: where the
// decoder keeps memories (Decoder::set_memory_place), or, mapped, in the files, which may be larger
// than main memory and must not change while they are in use. Throws reynard::Error when a file is
// missing, damaged, of another model or of products of another dtype.
StateSnapshot load_memories(const Decoder& decoder,
                            const std::string& model,
                            const std::filesystem::path& folder,
                            bool mapped = false);

}  // namespace reynard::models
