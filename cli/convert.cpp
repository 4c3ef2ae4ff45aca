// reynard convert MODEL FOLDER: the same model in another published layout or dtype.

#include "cli/claimed_folder.h"
#include "cli/command.h"
#include "cli/end_tokens.h"
#include "cli/model_tokenizer.h"
#include "reynard/checkpoint/directory.h"
#include "reynard/config/json_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/registry.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/saved_tokenizer.h"
#include "reynard/tokenizer/tokenizer_folder.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <memory>
#include <string>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

struct ConvertArguments {
  std::string model, folder, layout, dtype = "f32";
};

// What belongs to a model's text beside its tokenizer and is the same in every layout.
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr std::array kCompanions = {
    "special_tokens_map.json", kGenerationConfig, "chat_template.jinja", "chat_template.json"};

std::string layout_names() {
  std::string names;
  for (const models::Family* family : models::families()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", family->model_type);
  }
  return names;
}

// A layout is asked for by name for other programs to read.
void check_published(const std::string& layout, const models::DecoderConfig& config) {
  const models::Family& family = models::find_family(layout, "convert");
  if (!family.obstacle(config).empty()) return;  // said where it is written
  const std::string setting = models::own_setting(family, config);
  if (setting.empty()) return;
  throw Error(
      fmt::format("convert: layout {} cannot express this model: {} (without --to it is written "
                  "for reynard alone)",
                  layout,
                  setting));
}

void check_is_free(const fs::path& folder) {
  check_leads_somewhere("convert", folder);
  if (!fs::exists(folder) || (fs::is_directory(folder) && fs::is_empty(folder))) return;
  throw Error(
      fmt::format("convert: {} exists; name a folder that does not, or is empty", folder.string()));
}

// config.json keeps one end token; the others that the source's names go where all may stand.
void write_end_tokens(const fs::path& source,
                      const models::DecoderConfig& config,
                      checkpoint::FolderWriter& writer) {
  const fs::path file = source / kGenerationConfig;
  std::vector<int64_t> all = end_tokens(file, config.vocab_size);
  if (config.eos_token_id) add_unique(all, {*config.eos_token_id});
  const std::size_t num_kept = all.size();
  add_unique(all, end_tokens(source / "config.json", config.vocab_size));
  if (all.size() == num_kept) return;
  nlohmann::json settings = config::json_object_or_null(file);
  settings["eos_token_id"] = all;
  writer.write(kGenerationConfig, settings.dump(2) + "\n");
}

void run_convert(const ConvertArguments& arguments) {
  const fs::path source = models::model_folder(arguments.model);
  check_is_free(arguments.folder);
  models::Layout layout = models::load_layout(source);
  models::Decoder decoder = models::load_model(source);
  if (!arguments.layout.empty()) {
    check_published(arguments.layout, decoder.config());
    layout.model_type = arguments.layout;
  } else if (!models::find_family(layout.model_type, "convert")
                  .obstacle(decoder.config())
                  .empty()) {
    layout.model_type.clear();  // what is under "reynard" may go beyond it
  }
  // A folder by another name, as "." or a link, is replaced as well.
  const fs::path folder = fs::weakly_canonical(arguments.folder);
  const ClaimedFolder claimed(folder);
  check_is_free(folder);  // the other may just have ended
  checkpoint::FolderWriter writer(folder);
  const at::ScalarType dtype = arguments.dtype == "bf16"  ? at::kBFloat16
                               : arguments.dtype == "f16" ? at::kHalf
                                                          : at::kFloat;
  models::write_model(decoder, writer, layout, dtype);
  const std::string tokenizer = tokenizer_of_model(source, decoder.config().vocab_size);
  if (!tokenizer.empty()) {
    for (const tokenizer::SavedFile& file : tokenizer::saved_files(tokenizer)) {
      writer.write(file.name, file.contents);
    }
  }
  for (const char* name : kCompanions) {
    if (fs::exists(source / name)) {
      writer.write(name, tokenizer::read_tokenizer_file(source / name));
    }
  }
  write_end_tokens(source, decoder.config(), writer);
  writer.commit();
}

}  // namespace

void add_convert(CLI::App& app) {
  auto* command = app.add_subcommand("convert", "Write a model in another layout or dtype");
  auto arguments = std::make_shared<ConvertArguments>();
  command->add_option("MODEL", arguments->model, "model folder or run folder")->required();
  command->add_option("FOLDER", arguments->folder, "to write; must not exist, or be empty")
      ->required();
  command->add_option(
      "--to", arguments->layout, "layout: " + layout_names() + "; by default MODEL's own");
  command->add_option("--dtype", arguments->dtype, "of the weights: f32, bf16 or f16")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  command->footer(
      "Examples:\n"
      "  reynard convert runs/transformer-llama models/mine --to llama --dtype bf16\n"
      "\n"
      "A layout that cannot express the model is refused with what stands in its way. Tokenizer "
      "files, chat template and generation settings of the folder come along.\n");
  command->callback([arguments] { run_convert(*arguments); });
}

}  // namespace reynard::cli
