#pragma once
// Models from and to folders in the published layouts: config.json beside model.safetensors (or its
// shards). Every tensor must be there with its shape and none may be left over.

#include "reynard/models/decoder.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace reynard::checkpoint {
class FolderWriter;
}

namespace reynard::models {

// Where config.json and the weights lie: in the folder itself, in model/ of a run that once came to
// an end (until it does again, if it goes on), or in the newest checkpoint. Throws reynard::Error
// when there is no model there.
std::filesystem::path model_folder(const std::filesystem::path& model_or_run);

// Reads the model of a model_folder(); weights become f32 masters on the device.
// Checksums are verified where the folder has them. Throws reynard::Error naming file and tensor
// for everything that does not fit.
Decoder load_model(const std::filesystem::path& folder, at::Device device = at::kCPU);

// What matrix products read: weights and, with int8, activations in bf16 (ops/int8_linear.h).
enum class WeightFormat { kF32, kBF16, kInt8 };
config::EnumNames<WeightFormat> enum_names(WeightFormat);

// The same for a model that is only read (no gradients, no saving): weights that the file holds as
// they are needed stay in its pages on a CPU, others are converted one by one, so that none is ever
// held twice.
Decoder open_model(const std::filesystem::path& folder,
                   WeightFormat format,
                   at::Device device = at::kCPU);

// Only config.json of a model_folder(), which need not have weights: where it has, they say how the
// norms of q and k are shared, as in load_model().
DecoderConfig load_config(const std::filesystem::path& model_or_run);

// What config.json says of a model beside its DecoderConfig.
struct Layout {
  // models/registry.h; empty: the first of transformer-project_fox, longllama,
  // forgetting_transformer-project_fox, forgetting_transformer, llama, mistral, qwen2, qwen3,
  // transformer that can express the config.
  std::string model_type;
  std::optional<int64_t> max_positions;  // families/family.h
};
Layout load_layout(const std::filesystem::path& folder);

// Throws reynard::Error where no layout can express such a model: asked before training, which
// would else be lost when it is saved.
void check_can_be_saved(const DecoderConfig& config);

// Writes the folder atomically. model_type as in Layout.
void save_model(Decoder& decoder,
                const std::filesystem::path& folder,
                std::string_view model_type = "");

// The same two files into a folder that is being written (training checkpoints). dtype: of the
// weights, f32 | bf16 | f16.
void write_model(Decoder& decoder,
                 checkpoint::FolderWriter& folder,
                 const Layout& layout = {},
                 at::ScalarType dtype = at::kFloat);

}  // namespace reynard::models
