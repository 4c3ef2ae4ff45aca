// What a request to a decoder asks for beside its tokens: how text is drawn, and pruning of its
// own.

#include "reynard/evaluation/scorer.h"
#include "reynard/models/decoder.h"
#include "tests/evaluation/small_decoder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace reynard::evaluation {
namespace {

TEST(RequestOptions, TextIsDrawnByItsTemperatureAndSeed) {
  models::Decoder decoder(small_decoder(), 1);
  const auto scorer = make_decoder_scorer(decoder, 4096);
  const auto written = [&](double temperature, uint64_t seed) {
    Generate query;
    query.prompt = {1, 2, 3};
    query.max_tokens = 20;
    query.temperature = temperature;
    query.seed = seed;
    const std::vector<Request> requests{{"text", {}, query}};
    return std::get<Generated>(scorer->answer(requests)[0]).tokens;
  };
  EXPECT_EQ(written(0, 1), written(0, 2));
  EXPECT_EQ(written(1, 1), written(1, 1));
  EXPECT_NE(written(1, 1), written(1, 2));
  EXPECT_NE(written(1, 1), written(0, 1));
}

// exp(-1000) drops nothing: the model is the same in all else, in the numbers that it computes with
// and in what its memory holds.
TEST(RequestOptions, AToleranceThatDropsNothingChangesNothing) {
  models::DecoderConfig with_memory = small_decoder();
  with_memory.mixer = "memory_attention";
  with_memory.memory.window = 16;
  with_memory.memory.layers = {1};
  with_memory.memory.capacity = 32;
  Score own;
  own.context = {1};
  for (int64_t i = 0; i < 200; ++i) own.continuation.push_back((i * i * 7 + i) % 50);
  Score other = own;
  other.log_pruning_tolerance = -1000;
  const std::vector<Request> requests{{"own", {}, own}, {"other", {}, other}};
  for (const models::DecoderConfig& config : {small_decoder(), with_memory}) {
    for (const int64_t batch_tokens : {4096, 64}) {  // whole, and in pieces beside a cache
      models::Decoder decoder(config, 1);
      decoder.set_compute_dtype(at::kBFloat16);
      const auto responses = make_decoder_scorer(decoder, batch_tokens)->answer(requests);
      EXPECT_EQ(std::get<Scored>(responses[0]).logprobs, std::get<Scored>(responses[1]).logprobs)
          << config.mixer << ", batches of " << batch_tokens;
    }
  }
}

}  // namespace
}  // namespace reynard::evaluation
