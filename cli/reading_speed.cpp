#include "cli/reading_speed.h"

#include "cli/device_option.h"
#include "cli/model_config.h"
#include "cli/weight_option.h"
#include "reynard/data/random.h"
#include "reynard/models/pretrained.h"
#include "reynard/statistics/median.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

namespace reynard::cli {

namespace {

models::Decoder model_to_read(const std::string& model, const ReadingSpeedOptions& options) {
  const at::Device device = reading_device(options.device, options.dtype);
  if (std::filesystem::is_directory(model)) {
    return models::open_model(model, weight_format(options.dtype), device);
  }
  if (options.dtype == "int8") {
    throw Error(
        fmt::format("cost: --dtype int8 needs the weights of a model folder; {} has none", model));
  }
  models::Decoder decoder(read_model_config(model), /*seed=*/0, device);
  if (options.dtype == "bf16") decoder.set_compute_dtype(at::kBFloat16);
  return decoder;
}

}  // namespace

ReadingSpeed::ReadingSpeed(const std::string& model, const ReadingSpeedOptions& options)
    : decoder_(model_to_read(model, options)),
      scorer_(evaluation::make_decoder_scorer(decoder_, options.batch_tokens)) {
  seconds_to_read(64);  // what is done once only
}

double ReadingSpeed::at(int64_t length) {
  // Short passes are repeated: the median of up to five, for at most about two seconds.
  std::vector<double> seconds;
  double all = 0;
  do {
    seconds.push_back(seconds_to_read(length));
    all += seconds.back();
  } while (seconds.size() < 5 && all < 2);
  return static_cast<double>(length) / statistics::median(seconds);
}

// Of one sequence of random tokens.
double ReadingSpeed::seconds_to_read(int64_t length) {
  evaluation::Score score;
  for (int64_t i = 0; i < length; ++i) {
    const uint64_t bits = data::random_bits(0, 0, static_cast<uint64_t>(i));
    score.context.push_back(data::below(bits, decoder_.config().vocab_size));
  }
  score.continuation = {0};
  const std::vector<evaluation::Request> requests{{"", {}, std::move(score)}};
  const auto begin = std::chrono::steady_clock::now();
  scorer_->answer(requests);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace reynard::cli
