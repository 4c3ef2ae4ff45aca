// reynard eval --endpoint, --adapter: a model that is asked.

#include "cli/command_line.h"
#include "cli/eval_measurements.h"

#include <utility>

namespace reynard::cli {

namespace fs = std::filesystem;

void measure_remote(const EvalArguments& arguments, const evaluation::EvaluationConfig& config) {
  const RemoteModel model = open_remote_model(arguments.remote, arguments.tokenizer);
  const TextCorpus text = open_texts(arguments.texts, model.text);
  const evaluation::ModelFacts facts{
      arguments.train_length > 0 ? arguments.train_length : model.train_length, 0, false};
  evaluation::EvaluateOptions options;
  options.folder =
      arguments.output.empty() ? fs::path("eval") / model.name : fs::path(arguments.output);
  options.batch_tokens = arguments.batch_tokens;
  options.identity = model.identity;
  options.identity["text"] = text.identity;
  options.about = {{"name", model.name},
                   {"model", model.where},
                   {"text", text.name},
                   {"train_length", facts.train_length},
                   {"command", command_line()}};
  const auto scorer = model.make_scorer(text.corpus);
  measure_tasks(arguments, config, text.corpus, facts, *scorer, std::move(options));
}

}  // namespace reynard::cli
