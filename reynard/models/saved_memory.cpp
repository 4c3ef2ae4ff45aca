#include "reynard/models/saved_memory.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/fields.h"
#include "reynard/knn/memory.h"
#include "reynard/knn/memory_file.h"
#include "reynard/models/decoder.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <fmt/format.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace reynard::models {

namespace {

namespace fs = std::filesystem;

knn::MemoryLayer memory_layer(const Decoder& decoder, const std::string& model, int64_t layer) {
  return {.model = model,
          .layer = layer,
          .num_heads = decoder.config().num_kv_heads(),
          .head_dim = decoder.config().head_dim(),
          .dtype = decoder.compute_dtype()};
}

constexpr size_t kShownDigits = 12;  // of a text's digest

// Files get their names one after the other: a process killed there leaves some of an older text.
void check_same_text(const fs::path& file,
                     const knn::Memory& memory,
                     const std::string& text,
                     int64_t tokens) {
  if (memory.options().text == text && memory.size(0) == tokens) return;
  throw Error(
      fmt::format("{}: {} of the text {}, the first layer's file has {} of {}; make all files "
                  "anew with `reynard remember`",
                  file.string(),
                  counted(memory.size(0), "token"),
                  config::printable(memory.options().text.substr(0, kShownDigits)),
                  tokens,
                  config::printable(text.substr(0, kShownDigits))));
}

// Layers of a memory that was here before: whoever counts the folder's files, or copies them, would
// take them for the new one's.
void remove_other_layers(const MemoryConfig& config, const fs::path& folder) {
  std::set<fs::path> own;
  for (const int64_t layer : config.layers) own.insert(memory_file(folder, layer).filename());
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_layer = name.starts_with("layer-") && name.ends_with(".memory") &&
                          name.find_first_not_of("0123456789", 6) == name.size() - 7;
    if (is_layer && entry.is_regular_file() && !own.contains(name)) others.push_back(entry.path());
  }
  for (const fs::path& other : others) {
    checkpoint::remove_leftovers(other);
    fs::remove(other);
  }
}

}  // namespace

fs::path memory_file(const fs::path& folder, int64_t layer) {
  return folder / fmt::format("layer-{}.memory", layer);
}

void check_keeps_memory(const DecoderConfig& config) {
  tensor::check_value(config.has_memory() && !config.memory.layers.empty(),
                      "saved memory",
                      "model.memory.layers",
                      "empty",
                      "layers with a memory");
  const bool decays = config.attention.forget_gate != ForgetGate::kNone &&
                      config.memory.decay == MemoryDecay::kDistance;
  if (decays) {
    throw Error(
        "saved memory: model.memory.decay = \"distance\" needs the place of each key in the text, "
        "which a saved memory has not");
  }
}

void check_memory_files(const DecoderConfig& config, const fs::path& folder) {
  check_keeps_memory(config);
  if (!fs::is_directory(folder)) {
    throw Error(fmt::format("{}: {}; expected a folder of `reynard remember`",
                            folder.string(),
                            fs::exists(folder) ? "is a file" : "does not exist"));
  }
  for (const int64_t layer : config.memory.layers) knn::check_opens(memory_file(folder, layer));
}

void save_memories(const Decoder& decoder,
                   SequenceState& state,
                   const MemoryNames& names,
                   const fs::path& folder) {
  check_keeps_memory(decoder.config());
  state.check_memories();
  for (const int64_t layer : decoder.config().memory.layers) {
    tensor::check_value(state.memory(layer).size() > 0,
                        "saved memory",
                        "tokens of the memory",
                        int64_t{0},
                        "at least 1");
  }
  fs::create_directories(folder);
  std::vector<std::unique_ptr<knn::MemoryFileWriter>> files;
  for (const int64_t layer : decoder.config().memory.layers) {
    const LayerMemory& held = state.memory(layer);
    knn::Memory memory({.of = memory_layer(decoder, names.model, layer), .text = names.text});
    memory.reserve(held.size());
    for (const LayerMemory::Piece& piece : held.pieces()) {
      const knn::Entries entries = held.entries(piece);
      memory.add(entries.keys.unsqueeze(0), entries.values.unsqueeze(0));
    }
    checkpoint::remove_leftovers(memory_file(folder, layer));
    files.push_back(memory.write(memory_file(folder, layer)));
  }
  // All are whole: a full disk has left the older ones as they were.
  for (const auto& file : files) file->commit();
  // Last: until the new memory is whole nothing of another is lost but what it replaces.
  remove_other_layers(decoder.config().memory, folder);
}

StateSnapshot load_memories(const Decoder& decoder,
                            const std::string& model,
                            const fs::path& folder,
                            bool mapped) {
  check_keeps_memory(decoder.config());
  const MemoryConfig& config = decoder.config().memory;
  tensor::check_value(config.capacity != Decoder::kNoMemory,
                      "saved memory",
                      "capacity",
                      "none",
                      "room for what was saved");
  SequenceState state(decoder, make_page_pool(decoder));
  const MemoryStore& store = decoder.memory_store();
  const at::Device device = decoder.device();
  std::string text;
  int64_t tokens = 0;
  for (const int64_t layer : config.layers) {
    const fs::path file = memory_file(folder, layer);
    const knn::MemoryLayer of = memory_layer(decoder, model, layer);
    auto memory =
        std::make_shared<knn::Memory>(mapped ? knn::Memory::map(file, of, device, /*num_rows=*/1)
                                             : knn::Memory::load(file, of, device, store.place, 1));
    if (layer == config.layers[0]) {
      text = memory->options().text;
      tokens = memory->size(0);
    }
    check_same_text(file, *memory, text, tokens);
    if (store.coded) memory->code_keys();
    state.memory(layer) = LayerMemory(std::move(memory), store.capacity);
  }
  return state.snapshot();
}

}  // namespace reynard::models
