// reynard eval --task lm_eval.

#include "cli/command_line.h"
#include "cli/device_option.h"
#include "cli/eval_measurements.h"
#include "cli/lm_eval.h"
#include "reynard/tensor/error.h"

#include <cstdlib>

namespace reynard::cli {

namespace fs = std::filesystem;

void measure_with_harness(const EvalArguments& arguments,
                          const evaluation::EvaluationConfig& config) {
  const std::string& endpoint = arguments.remote.endpoint;
  HarnessRun run{.config = config.lm_eval,
                 .output = arguments.output,
                 .serve = {},
                 .url = {},
                 .model = {},
                 .identity = {},
                 .about = {{"command", command_line()}}};
  if (!arguments.remote.adapter.empty() || !arguments.checkpoints.empty()) {
    throw Error("eval: lm_eval needs MODEL or --endpoint");
  }
  if (arguments.remote.chat) {
    throw Error("eval: lm_eval asks for log-probabilities, which --chat completions have not");
  }
  if (endpoint.empty()) {
    const ModelFolder folder = find_model(arguments.model);
    run.serve = {folder.model.string(), "--dtype", arguments.dtype, "--device", arguments.device};
    if (!arguments.tokenizer.empty()) {
      run.serve.insert(run.serve.end(), {"--tokenizer", arguments.tokenizer});
    }
    const at::Device device = reading_device(arguments.device, arguments.dtype);
    run.identity = {{"model", folder.identity()},
                    {"dtype", arguments.dtype},
                    {"device", device.is_cuda() ? "cuda" : "cpu"}};
    if (!arguments.tokenizer.empty()) run.identity["tokenizer"] = arguments.tokenizer;
    run.about["name"] = folder.name;
    run.about["model"] = folder.model.string();
    if (arguments.output.empty()) run.output = folder.results();
  } else {
    const RemoteModel model = open_remote_model(arguments.remote, arguments.tokenizer);
    run.url = model.url;
    run.model = model.model;
    run.identity = model.identity;
    run.about["name"] = model.name;
    run.about["model"] = model.where;
    if (arguments.output.empty()) run.output = fs::path("eval") / model.name;
  }
  // The harness takes its key from this variable; `reynard serve` wants the same as an endpoint.
  const char* key = std::getenv(arguments.remote.api_key_variable.c_str());
  if (key != nullptr) ::setenv("OPENAI_API_KEY", key, /*overwrite=*/1);
  print_summary(run_harness(run), arguments.json);
}

}  // namespace reynard::cli
