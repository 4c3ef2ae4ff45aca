// reynard remember MODEL --text TEXT: reads a text into a model's memories and keeps them as files.

#include "cli/claimed_folder.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/evaluation_inputs.h"
#include "cli/memory_options.h"
#include "cli/message.h"
#include "cli/numbers.h"
#include "cli/weight_option.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/sha256.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/saved_memory.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

struct RememberArguments {
  std::string model, text, tokenizer, output, dtype = "f32", device = "auto", place = "device";
  int64_t tokens = 0;
  int64_t batch_tokens = 16384;
};

// A memory may be made anew in its folder; files of others are no place for it. Returns whether
// there is one.
bool check_holds_memories_alone(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder)) return false;
  if (!std::filesystem::is_directory(folder)) {
    throw Error(fmt::format("remember: --out {}: is not a folder", folder.string()));
  }
  bool holds_memory = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_memory = name.ends_with(".memory");
    holds_memory = holds_memory || is_memory;
    if (is_memory || name.starts_with(checkpoint::kTemporaryPrefix)) continue;
    throw Error(fmt::format("remember: --out {} holds {}, which is no memory; name another folder",
                            folder.string(),
                            name));
  }
  return holds_memory;
}

void remember_text(const RememberArguments& arguments) {
  check_leads_somewhere("remember", arguments.output);
  check_holds_memories_alone(arguments.output);
  const ClaimedFolder claimed(arguments.output);
  const bool replaces =
      check_holds_memories_alone(arguments.output);  // another may just have ended
  const ModelFolder folder = find_model(arguments.model);
  const models::DecoderConfig config = models::load_config(folder.model);
  tensor::check_value(config.has_memory(),
                      "remember",
                      "MODEL",
                      arguments.model,
                      "a model with the mixer memory_attention");
  models::check_keeps_memory(config);
  const TextCorpus text = open_texts({arguments.text}, folder, config, arguments.tokenizer);
  models::Decoder decoder = models::open_model(folder.model,
                                               weight_format(arguments.dtype),
                                               reading_device(arguments.device, arguments.dtype));
  if (replaces) print_message("{}: the memory that is there is replaced\n", arguments.output);
  decoder.set_memory_place(place_of(arguments.place), /*coded=*/false);
  // Documents one after the other, newest last, without what marks their ends.
  int64_t left = arguments.tokens > 0 ? arguments.tokens : text.corpus.num_tokens;
  const int64_t piece =
      std::max<int64_t>(arguments.batch_tokens / config.memory.window, 1) * config.memory.window;
  models::SequenceState state(decoder, models::make_page_pool(decoder));
  int64_t read = 0;
  checkpoint::Sha256 digest;
  for (const auto& document : text.corpus.documents) {
    const int64_t end = std::min(document.end, document.begin + left);
    for (int64_t at = document.begin; at < end; at += piece) {
      const std::vector<int64_t> tokens = text.corpus.read(at, std::min(end, at + piece));
      decoder.remember(at::tensor(tokens, at::kLong), state);
      digest.update(tokens.data(), tokens.size() * sizeof(tokens[0]));
      read += static_cast<int64_t>(tokens.size());
    }
    left -= end - document.begin;
    if (left <= 0) break;
  }
  models::save_memories(
      decoder, state, {.model = folder.identity(), .text = digest.hex()}, arguments.output);
  const int64_t capacity = config.memory.capacity;
  if (capacity > 0 && capacity < read) {
    fmt::print("{}: {}, the newest of {}\n", arguments.output, counted(capacity, "token"), read);
  } else {
    fmt::print("{}: {}\n", arguments.output, counted(read, "token"));
  }
}

}  // namespace

void add_remember(CLI::App& app) {
  auto* remember = app.add_subcommand(
      "remember",
      "Read a text into the memory of a model and keep it, for --memory of other commands");
  auto arguments = std::make_shared<RememberArguments>();
  remember->add_option("MODEL", arguments->model, "model folder or run folder")->required();
  remember
      ->add_option("--text",
                   arguments->text,
                   "token file, or text; BOS and EOS of its documents are not remembered")
      ->required();
  remember->add_option(
      "--tokenizer", arguments->tokenizer, "of the text; default: the one in the model's folder");
  remember
      ->add_option("-o,--out,--output",
                   arguments->output,
                   "folder for the files, one per layer; a memory that is there is replaced")
      ->required();
  remember->add_option("--tokens", arguments->tokens, "of the text; default: all")
      ->check(above_zero());
  remember->add_option("--batch-tokens", arguments->batch_tokens, "tokens of one forward pass")
      ->check(above_zero())
      ->capture_default_str();
  remember
      ->add_option("--memory-place",
                   arguments->place,
                   "where the memory lies until it is written: device, beside the weights; "
                   "host-values: keys there, values in host memory; host: both in host memory")
      ->check(CLI::IsMember({"device", "host-values", "host"}))
      ->capture_default_str();
  add_weight_option(*remember, arguments->dtype);
  add_device_option(*remember, arguments->device);
  remember->footer(
      "Examples:\n"
      "  reynard remember models/longllama --text library.tokens -o memories/library\n"
      "  reynard generate models/longllama \"Who wrote it?\" --memory memories/library\n"
      "  reynard remember runs/fot --text book.txt --tokens 1000000 --dtype bf16 -o "
      "memories/book\n");
  remember->callback([arguments] { remember_text(*arguments); });
}

}  // namespace reynard::cli
