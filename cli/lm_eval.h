#pragma once
// The task lm_eval of `reynard eval`: the installed lm-evaluation-harness asks a server, and its
// table becomes a result like any other. Neither its tasks nor its scores are ours.

#include "reynard/evaluation/evaluation_config.h"

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::cli {

inline constexpr const char* kLmEval = "lm_eval";

struct HarnessRun {
  evaluation::LmEvalConfig config;
  std::filesystem::path output;    // lm_eval.json and the harness's own files go here
  std::vector<std::string> serve;  // arguments of `reynard serve` for the model; empty: url is set
  std::string url;                 // of an endpoint, to /v1; empty: the model is served
  std::string model;               // its name at the endpoint
  nlohmann::json identity;         // of the model: answers of another are not used again
  nlohmann::json about;            // copied into the summary
};
// Returns the summary. Throws reynard::Error where the harness is not installed, saying how to
// install it, and where it fails.
nlohmann::json run_harness(const HarnessRun& run);

}  // namespace reynard::cli
