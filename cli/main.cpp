// reynard: the command-line program. Each subcommand is one file; this one lists them and turns
// errors into messages and exit codes: 0 done, 1 internal failure, 2 a mistake of the user or a bad
// file.

#include "cli/command.h"
#include "cli/memory_limit.h"
#include "cli/numbers.h"
#include "cli/passive_waiting.h"
#include "cli/stop_signal.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/out_of_memory.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

namespace {

int report_out_of_memory(const std::exception& error) {
  if (reynard::tensor::is_out_of_gpu_memory(error)) {
    fmt::print(stderr,
               "reynard: out of GPU memory; use a shorter length, a smaller batch, a smaller model "
               "or, in training, training.checkpoint_activations\n");
    return 2;
  }
  fmt::print(stderr,
             "reynard: out of memory: more than the {:.1f} GB that were free are needed; use a "
             "shorter length, a smaller batch or a smaller model\n",
             static_cast<double>(reynard::cli::memory_limit()) / 1e9);
  return 2;
}

// What is printed may be all that a command makes (info, score): where it is lost nothing was done.
int with_output_written(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  fmt::print(stderr, "reynard: standard output cannot be written; is the disk full?\n");
  return 2;
}

// One line, and where to read more, instead of the whole help.
std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  const auto commands = app->get_subcommands();
  if (commands.empty() && !app->remaining().empty()) {
    return fmt::format("reynard: {} is no command; see `reynard --help`\n",
                       app->remaining().front());
  }
  std::string names;
  for (auto at = commands; !at.empty(); at = at.front()->get_subcommands()) {
    names += at.front()->get_name() + " ";
  }
  return fmt::format("reynard: {}; see `reynard {}--help`\n", error.what(), names);
}

}  // namespace

int main(int argc, char** argv) {
  c10::initLogging();  // reads $TORCH_CPP_LOG_LEVEL, as Python does
  // Benchmarks and their peers keep what OpenMP does by itself.
  if (argc > 1 && std::string_view(argv[1]) != "bench") reynard::cli::wait_passively(argv);
  CLI::App app{
      "reynard trains, runs and measures long-context language models that forget and look up.\n"
      "Start with ./quickstart, or: reynard prepare, reynard train, reynard eval, reynard report.",
      "reynard"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "reynard " REYNARD_VERSION);
  app.failure_message(usage_error);

  using namespace reynard::cli;
  add_bench(app);
  add_prepare(app);
  add_train(app);
  add_sweep(app);
  add_eval(app);
  add_remember(app);
  add_inspect(app);
  add_report(app);
  add_compare(app);
  add_cost(app);
  add_forgetting_curve(app);
  add_dictionary(app);
  add_info(app);
  add_score(app);
  add_generate(app);
  add_chat(app);
  add_tokenizer(app);
  add_serve(app);
  add_convert(app);
  reject_wrong_numbers(app);

  limit_memory_to_free();
  try {
    app.parse(argc, argv);
    return with_output_written(0);
  } catch (const CLI::ParseError& e) {
    return with_output_written(app.exit(e) == 0 ? 0 : 2);
  } catch (const ExitWith& e) {
    return e.code;
  } catch (const reynard::Error& e) {
    fmt::print(stderr, "reynard: {}\n", e.what());
    return 2;
  } catch (const std::filesystem::filesystem_error& e) {  // a folder that cannot be made, ...
    fmt::print(stderr, "reynard: {}: {}\n", e.path1().string(), e.code().message());
    return 2;
  } catch (const std::exception& e) {
    if (std::ferror(stdout) != 0) return with_output_written(2);
    if (reynard::tensor::is_out_of_memory(e)) return report_out_of_memory(e);
    fmt::print(stderr, "reynard: internal error: {}\n", e.what());
    return 1;
  }
}
