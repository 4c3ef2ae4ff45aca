#pragma once
// What a forgetting curve shows, in words: a memory length is one at which a test tells the gain
// from chance; the published length, which no test limits, stands beside it.

#include "reynard/report/run_results.h"

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::report {

// Whether a text that the model has just seen helps it at some length by more than chance.
enum class Copying {
  kYes,
  kNo,
  kTooFewRepeats,  // to tell
};
// Of a summary of the task forgetting_curve. One that does not say is taken at its lengths.
Copying copying(const nlohmann::json& summary);

// A coarse length: the longest tested one that qualifies.
struct CoarseLength {
  double length = 0;  // tokens; NaN: not in the summary
  std::string text;   // ">1024": to the end of the test
};
// By the test of each length, or where the summary has none the published one.
CoarseLength tested_coarse_length(const nlohmann::json& summary);
// As the paper defines it: the means differ by more than one point, by chance or not.
CoarseLength published_coarse_length(const nlohmann::json& summary);

std::string fine_memory(const nlohmann::json& summary);  // "32 tokens"
// By test, and where the published one is longer that too: "64 tokens; >512 tokens (within noise)".
std::string coarse_memory(const nlohmann::json& summary);

// Whether twice the coarse length exceeds a claimed one: the whole sequence is the text twice.
enum class Claim {
  kConfirmed,
  kDenied,
  kTooFewRepeats,
  // The memory, or without copying by more than chance the published one, reaches to the end of
  // the test, which is too short for the claim.
  kNotFarEnough,
};
Claim claim(const nlohmann::json& summary, int64_t claimed);

// Of a run, for the page; empty where the curve was not measured. tokens_to_copy: as in
// VerdictOptions, for a model that trains at `tokens_per_s` (NaN: unknown).
std::string memory_sentence(const RunResults& run, int64_t tokens_to_copy, double tokens_per_s);
// Of its summary; empty: none.
std::string fine_memory(const RunResults& run);
std::string coarse_memory(const RunResults& run);
std::string claimed_length(const RunResults& run);  // "512 tokens (not confirmed)"

}  // namespace reynard::report
