// LongLLaMA (the Focused Transformer authors' Hugging Face code): Llama's tensors, and a memory in
// `mem_layers`. Its memory dtype and the grouping of its attention loops decide memory use, not the
// function, and are not read.

#include "reynard/models/families/layout.h"
#include "reynard/models/families/llama_layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  kLlama.read_keys(fields, config);
  config.mixer = "memory_attention";
  config.memory.window = fields.of("memory.window").integer("max_position_embeddings", 2048);
  config.memory.last_context =
      fields.of("memory.last_context").integer("last_context_length", 1024);
  config.memory.layers = fields.of("memory.layers").integers("mem_layers");
  config.memory.positions = fields.boolean("mem_positionals", true);
}

std::string obstacle(const DecoderConfig& config) {
  DecoderConfig local = config;
  local.mixer = "attention";
  return all_obstacles({{!config.has_memory(), "mixer is not memory_attention"},
                        {config.has_memory() && config.memory.merge != MemoryMerge::kJoint,
                         "memory.merge is not joint"}},
                       kLlama.obstacle(local));
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  kLlama.write_keys(config, json);
  json["max_position_embeddings"] = config.memory.window;
  json["last_context_length"] = config.memory.last_context;
  json["mem_layers"] = config.memory.layers;
  json["mem_positionals"] = config.memory.positions;
  json["mem_dtype"] = "float32";
  json["mem_attention_grouping"] = nullptr;
  json["torch_attention"] = false;
  json["gradient_checkpoint_every_ith"] = 1;
}

}  // namespace

const Family kLongLlama =
    llama_family("longllama", "LongLlamaForCausalLM", read_keys, write_keys, obstacle);

}  // namespace reynard::models
