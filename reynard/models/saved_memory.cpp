#include "reynard/models/saved_memory.h"

#include "reynard/knn/memory.h"
#include "reynard/models/decoder.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

namespace reynard::models {

namespace {

void check_keeps_memory(const DecoderConfig& config) {
  tensor::check_value(config.has_memory() && !config.memory.layers.empty(),
                      "saved memory",
                      "model.memory.layers",
                      "empty",
                      "layers with a memory");
  const bool decays = config.attention.forget_gate != ForgetGate::kNone &&
                      config.memory.decay == MemoryDecay::kDistance;
  tensor::check_value(!decays,
                      "saved memory",
                      "model.memory.decay",
                      "distance",
                      "none: a saved memory has no place in the text, so no distance");
}

knn::MemoryLayer memory_layer(const Decoder& decoder, const std::string& model, int64_t layer) {
  return {.model = model,
          .layer = layer,
          .num_heads = decoder.config().num_kv_heads(),
          .head_dim = decoder.config().head_dim(),
          .dtype = decoder.compute_dtype()};
}

std::filesystem::path file_of(const std::filesystem::path& folder, int64_t layer) {
  return folder / fmt::format("layer-{}.memory", layer);
}

}  // namespace

void save_memories(const Decoder& decoder,
                   SequenceState& state,
                   const std::string& model,
                   const std::filesystem::path& folder) {
  check_keeps_memory(decoder.config());
  for (const int64_t layer : decoder.config().memory.layers) {
    tensor::check_value(state.memory(layer).size() > 0,
                        "saved memory",
                        "tokens of the memory",
                        int64_t{0},
                        "at least 1");
  }
  std::filesystem::create_directories(folder);
  for (const int64_t layer : decoder.config().memory.layers) {
    const knn::Entries entries = state.memory(layer).entries();
    knn::Memory memory({.of = memory_layer(decoder, model, layer)});
    memory.add(entries.keys.unsqueeze(0), entries.values.unsqueeze(0));
    memory.save(file_of(folder, layer));
  }
}

StateSnapshot load_memories(const Decoder& decoder,
                            const std::string& model,
                            const std::filesystem::path& folder) {
  check_keeps_memory(decoder.config());
  const MemoryConfig& config = decoder.config().memory;
  tensor::check_value(config.capacity != Decoder::kNoMemory,
                      "saved memory",
                      "capacity",
                      "none",
                      "room for what was saved");
  SequenceState state(decoder, make_page_pool(decoder));
  const at::Device device =
      knn::searches_on(decoder.device().type()) ? decoder.device() : at::Device(at::kCPU);
  for (const int64_t layer : config.layers) {
    const knn::Memory memory =
        knn::Memory::load(file_of(folder, layer), memory_layer(decoder, model, layer));
    tensor::check_value(
        memory.num_rows() == 1, "saved memory", "rows of a file", memory.num_rows(), "1");
    const knn::Entries entries = memory.entries(0);
    state.memory(layer).add(entries.keys, entries.values, {}, config.capacity, device);
  }
  return state.snapshot();
}

}  // namespace reynard::models
