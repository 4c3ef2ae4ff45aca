#include "tests/support/small_run.h"

#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "tests/support/files.h"

#include <fmt/format.h>

#include <string>

#include <nlohmann/json.hpp>

namespace reynard::test {

void write_small_run(const std::filesystem::path& folder, int64_t num_layers) {
  models::DecoderConfig config;
  config.hidden_size = 32;
  config.num_layers = num_layers;
  config.attention.num_heads = 2;
  models::Decoder decoder(config, 1);
  models::save_model(decoder, folder / "run/model");
  const nlohmann::json run{
      {"name", "small"}, {"train_length", 64}, {"command", {"reynard", "train", "x"}}};
  write_file(folder / "run/run.json", run.dump());
  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("line {} is {}\n", i, i * i % 97);
  write_file(folder / "text.txt", text);
}

}  // namespace reynard::test
