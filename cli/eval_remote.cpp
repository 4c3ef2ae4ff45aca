// reynard eval --endpoint, --adapter: a model that is asked.

#include "cli/command_line.h"
#include "cli/eval_measurements.h"
#include "reynard/config/json_file.h"

#include <cstdint>
#include <optional>
#include <utility>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

}  // namespace

void measure_remote(const EvalArguments& arguments,
                    const evaluation::EvaluationConfig& config,
                    const RemoteModel& model) {
  const TextCorpus text = open_texts(arguments.texts, model.text);
  const evaluation::ModelFacts facts{
      arguments.train_length > 0 ? arguments.train_length : model.train_length, 0, false};
  evaluation::EvaluateOptions options;
  options.folder =
      arguments.output.empty() ? fs::path("eval") / model.name : fs::path(arguments.output);
  options.batch_tokens = arguments.batch_tokens;
  options.identity = model.identity;
  options.identity["text"] = text.identity;
  // They may be those of the token file.
  options.identity["bos"] = config::or_null(text.corpus.bos);
  options.identity["eos"] = config::or_null(text.corpus.eos);
  options.about = {{"name", model.name},
                   {"model", model.where},
                   {"text", text.name},
                   {"train_length", facts.train_length},
                   {"command", command_line()}};
  const auto scorer = model.make_scorer(text.corpus);
  measure_tasks(arguments, config, text.corpus, facts, *scorer, std::move(options));
}

}  // namespace reynard::cli
