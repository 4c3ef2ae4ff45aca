#include "reynard/models/pretrained.h"

#include "reynard/checkpoint/directory.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/checkpoint/safetensors.h"
#include "reynard/checkpoint/safetensors_header.h"
#include "reynard/config/json_file.h"
#include "reynard/models/registry.h"
#include "reynard/ops/int8_linear.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/huge_pages.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <set>
#include <system_error>
#include <vector>

namespace reynard::models {

namespace fs = std::filesystem;

namespace {

constexpr uintmax_t kMaxConfigBytes = 4 << 20;

struct ConfigFile {
  std::string name;
  nlohmann::json json;
  const Family* family;

  DecoderConfig decoder() const { return read_config(*family, json, name); }
};

bool has_config(const fs::path& folder) {
  std::error_code unreadable;
  return fs::exists(folder / "config.json", unreadable);
}

// Empty: there is none.
fs::path newest_checkpoint(const fs::path& run) {
  const std::vector<fs::path> all = checkpoint::list_checkpoints(run);
  const auto newest = std::find_if(all.rbegin(), all.rend(), has_config);
  return newest == all.rend() ? fs::path() : *newest;
}

ConfigFile read_config_file(const fs::path& folder) {
  const std::string file = (folder / "config.json").string();
  nlohmann::json json = config::read_json_object(file, kMaxConfigBytes);
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) {
    throw Error(fmt::format("{}: has no string \"model_type\"", file));
  }
  const Family& family = find_family(type->get<std::string>(), file);
  return {file, std::move(json), &family};
}

// An index alone is none: it comes with the config where somebody fetched all JSON files.
bool has_weights(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const auto& entry) {
    const fs::path name = entry.path().filename();
    return name.string().starts_with("model") && name.extension() == ".safetensors";
  });
}

bool has_qk_norm_weights(const AttentionMixerConfig& attention) {
  return attention.qk_norm == QKNorm::kPerHead || attention.qk_norm == QKNorm::kShared;
}

// The weights say how QK-norm is shared: (D) for all heads or (H*D). The released FoX checkpoints
// share; configs older than the switch do not say so.
void adopt_qk_norm(const checkpoint::TensorFolder& tensors,
                   const Family& family,
                   DecoderConfig& config) {
  AttentionMixerConfig& a = config.attention;
  if (!has_qk_norm_weights(a)) return;
  const auto* info = tensors.find(family.pieces("model.layers.0.attn.q_norm.weight", 0)[0].name);
  if (info == nullptr || info->shape.size() != 1) return;  // reported with the other tensors
  if (a.num_heads == 1) return;                            // the same either way
  if (info->shape[0] == config.head_dim() * a.num_heads) a.qk_norm = QKNorm::kPerHead;
  if (info->shape[0] == config.head_dim()) a.qk_norm = QKNorm::kShared;
}

void check_piece(const checkpoint::TensorFolder& tensors,
                 const Piece& piece,
                 const at::Tensor& parameter) {
  const auto* info = tensors.find(piece.name);
  const std::string file = tensors.file_of(piece.name).string();
  if (info == nullptr) throw Error(fmt::format("{}: has no tensor \"{}\"", file, piece.name));
  std::vector<int64_t> expected = parameter.sizes().vec();
  expected[0] = piece.rows;
  if (info->shape != expected) {
    throw Error(fmt::format("{}: tensor \"{}\" has shape [{}]; config.json needs [{}]",
                            file,
                            piece.name,
                            fmt::join(info->shape, ", "),
                            fmt::join(expected, ", ")));
  }
  if (!at::isFloatingType(info->dtype)) {
    throw Error(fmt::format("{}: tensor \"{}\" has dtype {}; weights must be F32, BF16, F16 or F64",
                            file,
                            piece.name,
                            c10::toString(info->dtype)));
  }
}

// Some writers store the head beside the embedding that it is tied to, at times in another dtype:
// one of them is then the other, rounded.
void check_tied_head(const checkpoint::TensorFolder& tensors, const std::string& embedding) {
  constexpr const char* kHead = "lm_head.weight";
  const auto* info = tensors.find(kHead);
  if (info->shape == tensors.find(embedding)->shape && at::isFloatingType(info->dtype)) {
    const at::Tensor head = tensors.read(kHead), values = tensors.read(embedding);
    if (head.to(values.scalar_type()).equal(values)) return;
    if (values.to(head.scalar_type()).equal(head)) return;
  }
  throw Error(
      fmt::format("{}: tensor \"{}\" is not \"{}\", though tie_word_embeddings in "
                  "config.json says that it is the same",
                  tensors.file_of(kHead).string(),
                  kHead,
                  embedding));
}

// Checks the whole folder before the weights are taken.
void check_tensors(const checkpoint::TensorFolder& tensors, const Family& family, Decoder& shapes) {
  std::set<std::string> used;
  shapes.parameters([&](const std::string& name, Parameter& parameter) {
    for (const Piece& piece : family.pieces(name, parameter.value.size(0))) {
      check_piece(tensors, piece, parameter.value);
      used.insert(piece.name);
    }
  });
  if (shapes.config().tie_embeddings && tensors.find("lm_head.weight") != nullptr) {
    check_tied_head(tensors, family.pieces("model.embeddings.weight", 0)[0].name);
    used.insert("lm_head.weight");
  }
  for (const std::string& name : tensors.names()) {
    if (used.contains(name) || family.ignores(name)) continue;
    throw Error(fmt::format("{}: tensor {} has no place in the model of config.json",
                            tensors.file_of(name).string(),
                            checkpoint::json_quoted(name)));
  }
}

const Family& choose_family(const DecoderConfig& config, std::string_view model_type) {
  if (!model_type.empty()) {
    const Family& family = find_family(model_type, "save_model");
    const std::string obstacle = family.obstacle(config);
    if (obstacle.empty()) return family;
    throw Error(
        fmt::format("layout {} cannot express this model: {}", family.model_type, obstacle));
  }
  for (const Family* family : {&kTransformer,
                               &kLongLlama,
                               &kForgettingTransformer,
                               &kFlaForgettingTransformer,
                               &kLlama,
                               &kMistral,
                               &kQwen2,
                               &kQwen3,
                               &kFlaTransformer}) {
    if (family->obstacle(config).empty()) return *family;
  }
  throw Error(fmt::format("no layout can express this model (layout {}: {})",
                          kForgettingTransformer.model_type,
                          kForgettingTransformer.obstacle(config)));
}

// Recurrence is of training only.
DecoderConfig without_recurrence(DecoderConfig config) {
  if (config.mixer == "transformer_xl") config.mixer = "attention";
  return config;
}

}  // namespace

fs::path model_folder(const fs::path& model_or_run) {
  if (has_config(model_or_run)) return model_or_run;
  if (has_config(model_or_run / "model")) return model_or_run / "model";
  if (fs::path newest = newest_checkpoint(model_or_run); !newest.empty()) return newest;
  throw Error(fmt::format(
      "{}: {}",
      model_or_run.string(),
      fs::is_regular_file(model_or_run) ? "is a file; expected the folder of a model or of a run"
      : fs::exists(model_or_run)
          ? "holds no model: neither config.json nor model/config.json nor a checkpoint"
          : "does not exist; expected the folder of a model or of a run"));
}

DecoderConfig load_config(const fs::path& model_or_run) {
  const fs::path folder = model_folder(model_or_run);
  const ConfigFile file = read_config_file(folder);
  DecoderConfig config = file.decoder();
  if (!has_qk_norm_weights(config.attention) || !has_weights(folder)) return config;
  try {
    adopt_qk_norm(checkpoint::TensorFolder(folder), *file.family, config);
  } catch (const Error&) {
    // Weights that are not all there say nothing; who loads them is told what is wrong.
  }
  return config;
}

Layout load_layout(const fs::path& folder) {
  const ConfigFile file = read_config_file(model_folder(folder));
  return {std::string(file.family->model_type),
          read_max_positions(*file.family, file.json, file.name)};
}

namespace {

// A folder whose config and tensors belong together, with a decoder of shapes to be filled.
struct CheckedFolder {
  const Family* family;
  checkpoint::TensorFolder tensors;
  Decoder decoder;
};

CheckedFolder check_folder(const fs::path& model_or_run) {
  const fs::path folder = model_folder(model_or_run);
  const ConfigFile file = read_config_file(folder);
  DecoderConfig config = file.decoder();
  if (checkpoint::has_checksums(folder)) checkpoint::verify_folder(folder);
  checkpoint::TensorFolder tensors(folder);
  adopt_qk_norm(tensors, *file.family, config);
  Decoder decoder(config, /*seed=*/0, at::kMeta);
  check_tensors(tensors, *file.family, decoder);
  return {file.family, std::move(tensors), std::move(decoder)};
}

// Rounding to a narrower dtype must not make infinities: f16 ends at 65,504, f32 and bf16 near
// 3e38.
void check_in_range(const std::string& what, const at::Tensor& value, const at::Tensor& rounded) {
  const at::Tensor lost = rounded.isinf();
  if (!lost.any().item<bool>()) return;  // as nearly always: the wider values are not read again
  if (!lost.logical_and_(value.isfinite()).any().item<bool>()) return;
  throw Error(fmt::format("{} has values up to {:g}, beyond the range of {}{}",
                          what,
                          value.masked_select(lost).abs().max().item<double>(),
                          c10::toString(rounded.scalar_type()),
                          rounded.scalar_type() == at::kHalf ? "; bf16 and f32 hold them" : ""));
}

// The parameter's values, piece by piece.
void read_pieces(const checkpoint::TensorFolder& tensors,
                 const std::vector<Piece>& pieces,
                 const at::Tensor& value) {
  int64_t row = 0;
  for (const Piece& piece : pieces) {
    const at::Tensor read = tensors.read(piece.name);
    const at::Tensor rows = value.narrow(0, row, piece.rows).copy_(read);
    if (read.element_size() > rows.element_size()) {
      check_in_range(
          fmt::format("{}: tensor \"{}\"", tensors.file_of(piece.name).string(), piece.name),
          read,
          rows);
    }
    row += piece.rows;
  }
}

std::vector<std::string> names_of(const std::vector<Piece>& pieces) {
  std::vector<std::string> names;
  for (const Piece& piece : pieces) names.push_back(piece.name);
  return names;
}

using Empty = std::function<at::Tensor(at::IntArrayRef, at::ScalarType)>;

// In the file's own memory where it has them so, else in a new tensor.
at::Tensor map_or_read(const checkpoint::TensorFolder& tensors,
                       const std::vector<Piece>& pieces,
                       at::IntArrayRef shape,
                       at::ScalarType dtype,
                       const Empty& empty) {
  const at::Tensor mapped = tensors.map(names_of(pieces));
  if (mapped.defined() && mapped.scalar_type() == dtype) return mapped;
  const at::Tensor value = empty(shape, dtype);
  read_pieces(tensors, pieces, value);
  return value;
}

}  // namespace

config::EnumNames<WeightFormat> enum_names(WeightFormat) {
  return {
      {WeightFormat::kF32, "f32"}, {WeightFormat::kBF16, "bf16"}, {WeightFormat::kInt8, "int8"}};
}

Decoder load_model(const fs::path& folder, at::Device device) {
  CheckedFolder checked = check_folder(folder);
  checked.decoder.parameters([&](const std::string& name, Parameter& parameter) {
    const std::vector<Piece> pieces = checked.family->pieces(name, parameter.value.size(0));
    const at::Tensor value = at::empty(parameter.value.sizes(), at::kFloat);
    read_pieces(checked.tensors, pieces, value);
    parameter.value = value.to(device);
    parameter.value.requires_grad_(!parameter.frozen);
  });
  return std::move(checked.decoder);
}

Decoder open_model(const fs::path& folder, WeightFormat format, at::Device device) {
  if (format == WeightFormat::kInt8 && !device.is_cpu()) {
    throw Error("open_model: int8 weights are for the CPU; use f32 or bf16 on a GPU");
  }
  const at::ScalarType dtype = format == WeightFormat::kF32 ? at::kFloat : at::kBFloat16;
  CheckedFolder checked = check_folder(folder);
  tensor::HugePageArena arena;
  const Empty passing = [](at::IntArrayRef sizes, at::ScalarType type) {
    return at::empty(sizes, type);
  };
  const Empty lasting = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return device.is_cpu() ? arena.empty(sizes, type) : passing(sizes, type);
  };
  checked.decoder.parameters([&](const std::string& name, Parameter& parameter) {
    const std::vector<Piece> pieces = checked.family->pieces(name, parameter.value.size(0));
    const at::IntArrayRef shape = parameter.value.sizes();
    const bool looked_up = name == "model.embeddings.weight" && !parameter.product;
    // f64 is read as f32.
    const at::ScalarType stored = checked.tensors.find(pieces[0].name)->dtype;
    const at::ScalarType own = stored == at::kDouble ? at::kFloat : stored;
    if (looked_up) {  // rows are widened when they are read
      parameter.value = map_or_read(checked.tensors, pieces, shape, own, lasting).to(device);
    } else if (parameter.product && format == WeightFormat::kInt8) {
      const ops::Int8Weight weight =
          ops::quantize_rows(map_or_read(checked.tensors, pieces, shape, own, passing));
      parameter.value = lasting(shape, at::kChar).copy_(weight.values);
      parameter.scales = weight.scales;
      checked.tensors.let_go(names_of(pieces));  // else a model is held in both formats at once
    } else {
      parameter.value =
          map_or_read(
              checked.tensors, pieces, shape, parameter.product ? dtype : at::kFloat, lasting)
              .to(device);
      if (parameter.product && dtype != at::kFloat) parameter.compute = parameter.value;
    }
  });
  checked.decoder.set_read_only(dtype);
  return std::move(checked.decoder);
}

void check_can_be_saved(const DecoderConfig& config) {
  choose_family(without_recurrence(config), "");
}

void write_model(Decoder& decoder,
                 checkpoint::FolderWriter& folder,
                 const Layout& layout,
                 at::ScalarType dtype) {
  tensor::check_value(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                      "save_model",
                      "dtype",
                      c10::toString(dtype),
                      "Float, BFloat16 or Half");
  const DecoderConfig described = without_recurrence(decoder.config());
  const Family& family = choose_family(described, layout.model_type);
  std::vector<checkpoint::NamedTensor> tensors;
  decoder.parameters([&](const std::string& name, Parameter& parameter) {
    int64_t row = 0;
    for (const Piece& piece : family.pieces(name, parameter.value.size(0))) {
      const at::Tensor rows = parameter.value.detach().narrow(0, row, piece.rows);
      tensors.push_back({piece.name, rows.to(dtype)});
      check_in_range(fmt::format("tensor \"{}\"", piece.name), rows, tensors.back().tensor);
      row += piece.rows;
    }
  });
  nlohmann::ordered_json config = write_config(family, described, layout.max_positions);
  config["dtype"] = dtype == at::kFloat ? "float32" : dtype == at::kHalf ? "float16" : "bfloat16";
  folder.write("config.json", config.dump(2) + "\n");
  folder.write_tensors("model.safetensors", tensors, {{"format", "pt"}});
}

void save_model(Decoder& decoder, const fs::path& folder, std::string_view model_type) {
  checkpoint::FolderWriter writer(folder);
  write_model(decoder, writer, {std::string(model_type), std::nullopt});
  writer.commit();
}

}  // namespace reynard::models
