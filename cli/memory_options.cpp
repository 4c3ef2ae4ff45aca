#include "cli/memory_options.h"

#include "reynard/knn/memory.h"
#include "reynard/models/saved_memory.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <bit>
#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>

namespace reynard::cli {

namespace {

constexpr const char* kOnDisk = "disk";

// A whole decimal number, 0 for "all"; nothing for other texts.
std::optional<int64_t> parsed(const std::string& text) {
  if (text == "all") return 0;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

CLI::Validator all_or_from(int64_t least) {
  return {[least](const std::string& text) {
            const std::optional<int64_t> number = parsed(text);
            const bool holds =
                text == "all" || (number && *number >= least && *number <= knn::kMaxEntries);
            return holds ? ""
                         : fmt::format("{}; expected all, or a decimal number from {} to 2^{}",
                                       text,
                                       least,
                                       std::countr_zero(uint64_t{knn::kMaxEntries}));
          },
          "NUMBER|all"};
}

// `none` is what a limit of 0 means.
int64_t limit_of(const std::string& given, int64_t own, int64_t none) {
  if (given.empty()) return own;
  const int64_t limit = parsed(given).value();
  return limit == 0 && given != "all" ? none : limit;
}

// Newest tokens that the memory keeps and best keys that are read, as Decoder takes them.
int64_t tokens_of(const MemoryArguments& arguments, const models::DecoderConfig& config) {
  return limit_of(arguments.tokens, config.memory.capacity, models::Decoder::kNoMemory);
}

int64_t keys_of(const MemoryArguments& arguments, const models::DecoderConfig& config) {
  return limit_of(arguments.keys, config.memory.top_k, 0);
}

}  // namespace

knn::MemoryPlace place_of(const std::string& place) {
  if (place == "host") return knn::MemoryPlace::kHost;
  return place == "host-values" ? knn::MemoryPlace::kHostValues : knn::MemoryPlace::kDevice;
}

void add_options(CLI::App& command, MemoryArguments& arguments) {
  arguments.command = command.get_name();
  command
      .add_option("--memory",
                  arguments.folder,
                  "folder of `reynard remember`: every text begins with this memory")
      ->check([](const std::string& folder) {
        return folder.empty() ? "is empty; expected a folder of `reynard remember`" : "";
      });
  command
      .add_option("--memory-tokens",
                  arguments.tokens,
                  "newest tokens that a model's memory keeps, or all; 0: no memory; default: as "
                  "its config says")
      ->check(all_or_from(0));
  command
      .add_option("--memory-keys",
                  arguments.keys,
                  "best keys of the memory per query and head, or all; default: as its config says")
      ->check(all_or_from(1));
  command
      .add_option(
          "--memory-place",
          arguments.place,
          "where a memory lies: device (default), beside the weights; host-values: keys "
          "there, values in host memory; host: both in host memory, copied to a GPU block "
          "by block (on a CPU these are one); disk: --memory stays in its files, which may be "
          "larger than main memory")
      ->check(CLI::IsMember({"device", "host-values", "host", kOnDisk}));
  command.add_flag(
      "--memory-codes",
      arguments.codes,
      "with --memory-keys on a CPU: int8 codes beside the keys, half their bytes more, "
      "of which single tokens read half a key's bytes; the same results");
}

std::string given_option(const MemoryArguments& arguments) {
  if (!arguments.folder.empty()) return "--memory";
  if (!arguments.tokens.empty()) return "--memory-tokens";
  if (!arguments.keys.empty()) return "--memory-keys";
  if (!arguments.place.empty()) return "--memory-place";
  return arguments.codes ? "--memory-codes" : "";
}

void check(const MemoryArguments& arguments,
           const std::string& model,
           const models::DecoderConfig& config) {
  const std::string& command = arguments.command;
  const std::string given = given_option(arguments);
  if (!given.empty() && (!config.has_memory() || config.memory.layers.empty())) {
    throw Error(
        fmt::format("{}: {} needs a model with a memory; {} has none", command, given, model));
  }
  if (!arguments.folder.empty() && tokens_of(arguments, config) == models::Decoder::kNoMemory) {
    throw Error(
        fmt::format("{}: --memory-tokens {} leaves no room for --memory {}; leave one of them out",
                    command,
                    arguments.tokens,
                    arguments.folder));
  }
  if (tokens_of(arguments, config) == models::Decoder::kNoMemory &&
      (!arguments.keys.empty() || !arguments.place.empty() || arguments.codes)) {
    throw Error(fmt::format("{}: --memory-tokens {} leaves nothing for {}; leave one of them out",
                            command,
                            arguments.tokens,
                            arguments.codes            ? "--memory-codes"
                            : !arguments.place.empty() ? "--memory-place"
                                                       : "--memory-keys"));
  }
  if (arguments.place == kOnDisk && arguments.folder.empty()) {
    throw Error(fmt::format(
        "{}: --memory-place disk is for the files of --memory FOLDER, which is not given; give it, "
        "or --memory-place host for what a text leaves itself",
        command));
  }
  if (arguments.codes && keys_of(arguments, config) == 0) {
    throw Error(
        fmt::format("{}: --memory-codes is for a search of the best keys; give --memory-keys K: "
                    "where all are read nothing is searched",
                    command));
  }
  if (!arguments.folder.empty()) models::check_memory_files(config, arguments.folder);
}

void apply(const MemoryArguments& arguments, models::Decoder& decoder) {
  if (arguments.codes && !decoder.device().is_cpu()) {
    throw Error(fmt::format("{}: --memory-codes is for searches on a CPU, not for {}; leave it out",
                            arguments.command,
                            decoder.device().str()));
  }
  const models::DecoderConfig& config = decoder.config();
  decoder.set_memory_limits(tokens_of(arguments, config), keys_of(arguments, config));
  decoder.set_memory_place(place_of(arguments.place), arguments.codes);
}

std::shared_ptr<const models::StateSnapshot> load_memories(const MemoryArguments& arguments,
                                                           const std::string& identity,
                                                           const models::Decoder& decoder) {
  if (arguments.folder.empty()) return {};
  return std::make_shared<models::StateSnapshot>(models::load_memories(
      decoder, identity, arguments.folder, /*mapped=*/arguments.place == kOnDisk));
}

}  // namespace reynard::cli
