#pragma once
// What a model has read once, kept for many later texts: the memories of its layers as a folder of
// files (knn/memory.h), layer-N.memory. The local context and gates that decay a memory are not
// kept.

#include "reynard/models/state.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace reynard::models {

class Decoder;
struct DecoderConfig;

struct MemoryNames {
  std::string model;  // of the weights; at most 512 bytes of UTF-8
  std::string text;   // of what was read; at most 64 bytes
};

// Where the memory of a layer lies.
std::filesystem::path memory_file(const std::filesystem::path& folder, int64_t layer);

// Throws reynard::Error for a model whose memories cannot be kept: one without layers that have a
// memory, or with a memory that decays with the distance.
void check_keeps_memory(const DecoderConfig& config);

// The same, and when the folder or a file of the config's layers is not there or cannot be opened:
// what can be told before weights are read.
void check_memory_files(const DecoderConfig& config, const std::filesystem::path& folder);

// Writes the memories of a state, which replace those that are there once all are written, then
// removes files of layers that it has not. Nobody else may write to the folder meanwhile
// (checkpoint::FolderLock). Throws reynard::Error as check_keeps_memory does, and for a state that
// has filled none or of which one has a failure().
void save_memories(const Decoder& decoder,
                   SequenceState& state,
                   const MemoryNames& names,
                   const std::filesystem::path& folder);

// A state without tokens that has them in its memories, for SequenceState::restore: where the
// decoder keeps memories (Decoder::set_memory_place), or, mapped, in the files, which may be larger
// than main memory and must not change while they are in use. Throws reynard::Error when a file is
// missing, damaged, of another model or of products of another dtype, and when not all are of one
// text.
StateSnapshot load_memories(const Decoder& decoder,
                            const std::string& model,
                            const std::filesystem::path& folder,
                            bool mapped = false);

}  // namespace reynard::models
