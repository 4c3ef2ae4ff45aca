#include "bench/start.h"

#include "bench/llama_model.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "reynard/process/child_process.h"
#include "reynard/process/resident_memory.h"
#include "reynard/process/temporary_folder.h"
#include "reynard/statistics/median.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

namespace reynard::bench {

namespace {

constexpr double kLimitSeconds = 2;

struct Start {
  double seconds = 0;    // until the first byte of text
  double megabytes = 0;  // most that was resident
};

Start start_once(const std::string& model, const std::string& dtype, at::Device device) {
  process::forget_peak_resident_bytes();  // a program that starts counts what this one held
  const auto begin = std::chrono::steady_clock::now();
  process::ChildProcess program(
      {.arguments = {std::filesystem::read_symlink("/proc/self/exe").string(),
                     "generate",
                     model,
                     "Once upon a time",
                     "-m",
                     "1",
                     "--ignore-eos",
                     "--tokenizer",
                     "byte",
                     "--dtype",
                     dtype,
                     "--device",
                     device.is_cpu() ? "cpu" : "cuda"},
       .read_output = true});
  Start start;
  const bool wrote = !program.read_output().empty();
  start.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  while (!program.read_output().empty()) {
  }
  const process::Ending ending = program.wait();
  if (!wrote || ending.exit_code != 0) {
    throw Error("bench start: reynard generate failed (its message is above)");
  }
  start.megabytes = static_cast<double>(ending.peak_resident_bytes) * 1e-6;
  return start;
}

// Widths double from 768 until the layers are fewer than 48.
models::DecoderConfig config_of(int64_t megabytes) {
  for (int64_t width = 768;; width *= 2) {
    const int64_t of_tables = 2 * kLlamaVocabulary * width, of_layer = 12 * width * width;
    const int64_t layers = (megabytes * 1'000'000 / 4 - of_tables) / of_layer;
    if (layers < 48) return llama_config(width, std::max<int64_t>(1, layers));
  }
}

Rows rows_of(const StartBench& options, int64_t megabytes) {
  const at::Device device = tensor::choose_device(options.device);
  const process::TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "model";
  {
    models::Decoder decoder(config_of(megabytes), /*seed=*/1);
    models::save_model(decoder, model, "llama");
  }
  const auto file_bytes = std::filesystem::file_size(model / "model.safetensors");
  const double file_megabytes = static_cast<double>(file_bytes) * 1e-6;
  Rows rows;
  for (const std::string& dtype : options.dtypes) {
    std::vector<double> seconds;
    Start start;
    for (int i = 0; i < options.repeats; ++i) {
      start = start_once(model.string(), dtype, device);
      seconds.push_back(start.seconds);
    }
    Row first{.name = "first_token",
              .shape = fmt::format("{:.0f} MB", file_megabytes),
              .dtype = dtype,
              .device = device_name(device),
              .ours = statistics::median(seconds),
              .peer = "limit",
              .peer_value = kLimitSeconds,
              .unit = "s"};
    first.ratio = first.peer_value / first.ours;
    Row memory = first;
    memory.name = "peak_memory", memory.unit = "MB", memory.peer = "file";
    memory.ours = start.megabytes, memory.peer_value = file_megabytes;
    memory.ratio = memory.peer_value / memory.ours;
    rows.push_back(first);
    rows.push_back(memory);
  }
  return rows;
}

}  // namespace

Rows bench_start(const StartBench& options) {
  Rows rows;
  for (const int64_t megabytes : options.megabytes) {
    tensor::check_value(megabytes >= 250, "bench start", "--megabytes", megabytes, "at least 250");
    rows += rows_of(options, megabytes);
  }
  return rows;
}

}  // namespace reynard::bench
