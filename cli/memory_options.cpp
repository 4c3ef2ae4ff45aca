#include "cli/memory_options.h"

#include "reynard/models/saved_memory.h"
#include "reynard/tensor/check.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

namespace reynard::cli {

namespace {

constexpr const char* kOnDisk = "disk";

// `none` is what a limit of 0 means.
int64_t limit_of(const std::string& given,
                 const std::string& command,
                 const char* flag,
                 int64_t own,
                 int64_t none) {
  if (given.empty()) return own;
  if (given == "all") return 0;
  int64_t limit = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), limit);
  tensor::check_value(error == std::errc() && end == given.data() + given.size(),
                      command,
                      flag,
                      given,
                      "all, or a decimal number below 2^63");
  return limit == 0 ? none : limit;
}

knn::MemoryPlace place_of(const std::string& place) {
  if (place == "host") return knn::MemoryPlace::kHost;
  return place == "host-values" ? knn::MemoryPlace::kHostValues : knn::MemoryPlace::kDevice;
}

}  // namespace

void add_options(CLI::App& command, MemoryArguments& arguments) {
  arguments.command = command.get_name();
  command.add_option("--memory",
                     arguments.folder,
                     "folder of `reynard remember`: every text begins with this memory");
  command
      .add_option("--memory-tokens",
                  arguments.tokens,
                  "newest tokens that a model's memory keeps, or all; 0: no memory; default: as "
                  "its config says")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()) | CLI::IsMember({"all"}));
  command
      .add_option("--memory-keys",
                  arguments.keys,
                  "best keys of the memory per query and head, or all; default: as its config says")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()) | CLI::IsMember({"all"}));
  command
      .add_option(
          "--memory-place",
          arguments.place,
          "where a memory lies: device (default), beside the weights; host-values: keys "
          "there, values in host memory; host: both in host memory, copied to a GPU block "
          "by block; disk: --memory stays in its files, which may be larger than main memory")
      ->check(CLI::IsMember({"device", "host-values", "host", kOnDisk}));
  command.add_flag(
      "--memory-codes",
      arguments.codes,
      "with --memory-keys on a CPU: int8 codes beside the keys, half their bytes more, "
      "of which single tokens read half a key's bytes; the same results");
}

void apply(const MemoryArguments& arguments, models::Decoder& decoder) {
  const std::string& command = arguments.command;
  const models::MemoryConfig& config = decoder.config().memory;
  for (const auto& [flag, given] : {std::pair{"--memory", !arguments.folder.empty()},
                                    {"--memory-tokens", !arguments.tokens.empty()},
                                    {"--memory-keys", !arguments.keys.empty()},
                                    {"--memory-place", !arguments.place.empty()},
                                    {"--memory-codes", arguments.codes}}) {
    tensor::check_value(!given || decoder.config().has_memory(),
                        command,
                        flag,
                        "given",
                        "none: the model has no memory");
  }
  tensor::check_value(arguments.place != kOnDisk || !arguments.folder.empty(),
                      command,
                      "--memory-place",
                      kOnDisk,
                      "--memory FOLDER beside it: what a text leaves itself lies in main memory");
  tensor::check_value(!arguments.codes || decoder.device().is_cpu(),
                      command,
                      "--memory-codes",
                      "given",
                      "none: they are for searches on a CPU, and --device is a GPU");
  if (!decoder.config().has_memory()) return;
  const int64_t keys = limit_of(arguments.keys, command, "--memory-keys", config.top_k, 0);
  tensor::check_value(!arguments.codes || keys > 0,
                      command,
                      "--memory-codes",
                      "given",
                      "--memory-keys K beside it: where all keys are read nothing is searched");
  constexpr int64_t kNone = models::Decoder::kNoMemory;
  decoder.set_memory_limits(
      limit_of(arguments.tokens, command, "--memory-tokens", config.capacity, kNone), keys);
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
