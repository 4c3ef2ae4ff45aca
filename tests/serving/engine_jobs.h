#pragma once
// Jobs of a small byte model's engine, and what their replies collect.

#include "reynard/serving/engine.h"
#include "tests/serving/served.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace reynard::serving {

// For a piece that is sure to come.
inline constexpr std::chrono::minutes kPatience{2};

inline std::vector<int64_t> prompt_of(const std::string& text) {
  std::vector<int64_t> tokens;
  for (const unsigned char byte : text) tokens.push_back(byte);
  return tokens;
}

inline Job job_of(const std::string& prompt, int64_t max_tokens) {
  Job job;
  job.prompts = {prompt_of(prompt)};
  job.options.max_tokens = max_tokens;
  return job;
}

// Texts of a reply by their index, their tokens in the order they came in, and what they reused.
struct Collected {
  std::vector<std::string> texts;
  std::vector<int64_t> tokens;
  int64_t reused = 0;
  std::string error;
};
inline Collected collect(Reply& reply, std::size_t num_texts) {
  Collected all;
  all.texts.resize(num_texts);
  while (!reply.is_done()) {
    const auto piece = reply.next(kPatience);
    if (!piece) {
      EXPECT_TRUE(reply.is_done()) << "nothing came";
      break;
    }
    all.error += piece->error;
    if (!piece->error.empty()) continue;
    all.texts[piece->index] += piece->text;
    for (const auto& written : piece->tokens) all.tokens.push_back(written.token);
    all.reused += piece->reused_tokens;
  }
  return all;
}

struct EngineTest : testing::Test {
  models::Decoder decoder = test::byte_decoder();
  tokenizer::ByteTokenizer tokenizer;
};

}  // namespace reynard::serving
