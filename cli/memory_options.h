#pragma once
// --memory and what belongs to it, the same on every command that runs a model with a memory: what
// it has looked at before, how much it keeps, how much of it a query reads, and where it lies.

#include "reynard/knn/memory.h"
#include "reynard/models/decoder.h"
#include "reynard/models/state.h"

#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace reynard::cli {

struct MemoryArguments {
  std::string command;       // that has the options, for messages
  std::string folder;        // of `reynard remember`; empty: none
  std::string tokens, keys;  // a number or "all"; empty: as the model says
  std::string place;         // device, host-values, host or disk; empty: device
  bool codes = false;        // int8 codes beside the keys
};

void add_options(CLI::App& command, MemoryArguments& arguments);

// Of "device", "host-values" and "host"; others are "device".
knn::MemoryPlace place_of(const std::string& place);

// The first of the options that was given; empty: none.
std::string given_option(const MemoryArguments& arguments);

// What shows before weights are read: options that the config forbids and files that are not there.
// Throws reynard::Error.
void check(const MemoryArguments& arguments,
           const std::string& model,
           const models::DecoderConfig& config);

// Applies limits and place to the decoder. Throws reynard::Error for what the device cannot do.
void apply(const MemoryArguments& arguments, models::Decoder& decoder);

// What the folder holds, after apply(); null where none was named. identity: of the model's folder.
std::shared_ptr<const models::StateSnapshot> load_memories(const MemoryArguments& arguments,
                                                           const std::string& identity,
                                                           const models::Decoder& decoder);

}  // namespace reynard::cli
