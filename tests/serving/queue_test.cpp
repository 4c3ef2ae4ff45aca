// How many texts an engine takes: those of a batch and those that wait.

#include "tests/serving/engine_jobs.h"
#include "tests/support/eventually.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::serving {
namespace {

// Holds up whoever asks for its size, until it is released.
class HeldTokenizer final : public tokenizer::Tokenizer {
 public:
  bool is_asked() const { return asked_; }
  void release() {
    released_ = true;
    released_.notify_all();
  }

  std::string name() const override { return "held"; }
  int64_t vocab_size() const override {
    asked_ = true;
    released_.wait(false);
    return tokenizer::ByteTokenizer::kVocabSize;
  }
  std::optional<int64_t> bos() const override { return {}; }
  std::optional<int64_t> eos() const override { return {}; }
  std::size_t safe_prefix(std::string_view text) const override { return text.size(); }

 private:
  std::vector<int32_t> encode_text(std::string_view /*text*/,
                                   const tokenizer::EncodeOptions& /*options*/) const override {
    return {};
  }
  std::string decode_ids(std::span<const int64_t> ids,
                         const tokenizer::DecodeOptions& /*options*/) const override {
    return std::string(ids.size(), 'a');
  }

  mutable std::atomic<bool> asked_{false};
  std::atomic<bool> released_{false};
};

// Texts that could begin at once take no place of those that wait, and one that is about to begin
// counts as well as one that runs.
TEST_F(EngineTest, ABatchAndTheQueueBehindItAreTaken) {
  for (const bool begins : {false, true}) {
    SCOPED_TRACE(begins ? "held as the first text begins" : "held in a step");
    HeldTokenizer held;
    Engine engine(decoder, held, {.max_batch = 3, .max_waiting = 2});
    Job job = job_of("abc", 5);
    job.goes_on = begins;  // then the text is asked for what its prompt ends with
    std::vector<std::shared_ptr<Reply>> replies = {engine.submit(job)};
    EXPECT_TRUE(test::eventually([&] { return held.is_asked(); }));
    EXPECT_EQ(engine.counters().running, 1);
    EXPECT_EQ(engine.counters().waiting, 0);
    std::string refusal;
    try {
      while (replies.size() < 20) replies.push_back(engine.submit(job));
    } catch (const QueueFull& full) {
      refusal = full.what();
    }
    held.release();
    EXPECT_EQ(replies.size(), 3U + 2U);
    EXPECT_EQ(refusal, "the queue is full (4 texts waiting); try again later");
    for (const auto& reply : replies) EXPECT_EQ(collect(*reply, 1).texts[0], "aaaaa");
    engine.wait_until_idle();
    EXPECT_EQ(engine.counters().running, 0);
    EXPECT_EQ(engine.counters().waiting, 0);
  }
}

// Whoever has read the end of a text may ask for the next one.
TEST_F(EngineTest, TextsThatHaveEndedTakeNoPlaces) {
  Engine engine(decoder, tokenizer, {.max_batch = 2, .max_waiting = 2, .max_prefix_tokens = 4000});
  Job job = job_of(std::string(200, 'a'), 2);
  job.texts_per_prompt = 2;
  for (int burst = 0; burst < 200; ++burst) {
    const auto first = engine.submit(job), second = engine.submit(job);
    EXPECT_EQ(collect(*first, 2).error + collect(*second, 2).error, "");
  }
}

}  // namespace
}  // namespace reynard::serving
