// reynard: the command-line program. Each subcommand is one file; this one lists them and turns
// errors into messages and exit codes: 0 done, 1 internal failure, 2 a mistake of the user or a bad
// file.

#include "cli/command.h"
#include "cli/empty_inputs.h"
#include "cli/memory_limit.h"
#include "cli/message.h"
#include "cli/numbers.h"
#include "cli/passive_waiting.h"
#include "cli/stop_signal.h"
#include "cli/usage_error.h"
#include "cli/wrapped_help.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/out_of_memory.h"

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using reynard::cli::print_message;

int report_out_of_memory(const std::exception& error) {
  if (reynard::tensor::is_out_of_gpu_memory(error)) {
    print_message(
        "reynard: out of GPU memory; use a shorter length, a smaller batch, a smaller model "
        "or, in training, training.checkpoint_activations\n");
    return 2;
  }
  print_message(
      "reynard: out of memory: more than the {:.1f} GB that were free are needed; use a "
      "shorter length, a smaller batch or a smaller model\n",
      static_cast<double>(reynard::cli::memory_limit()) / 1e9);
  return 2;
}

// What is printed may be all that a command makes (info, score): where it is lost nothing was done.
int with_output_written(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  print_message("reynard: standard output cannot be written; is the disk full?\n");
  return 2;
}

// A file that is opened must not become the standard input, output or error that a caller closed:
// it would be read as what is typed, or written to. An output without a place stays an error.
void open_missing_streams() {
  for (const auto& [descriptor, mode] : {std::pair(STDIN_FILENO, O_RDONLY),
                                         std::pair(STDOUT_FILENO, O_RDONLY),
                                         std::pair(STDERR_FILENO, O_WRONLY)}) {
    if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", mode);
  }
}

// Words of the command line, the last one first, as the library takes them. --option= has an empty
// value; the library would take the next word for it.
std::vector<std::string> words_backwards(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words;
  const CLI::App* command = &app;
  bool are_options = true;  // "--" ends them
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    are_options = are_options && word != "--";
    const auto commands =
        command->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
    if (!commands.empty()) command = commands.front();
    const std::string name = word.ends_with('=') ? word.substr(0, word.size() - 1) : "";
    const CLI::Option* option =
        are_options && name.starts_with("--") ? command->get_option_no_throw(name) : nullptr;
    const bool is_empty_option = option != nullptr && option->get_items_expected_max() > 0;
    words.push_back(is_empty_option ? name : word);
    if (is_empty_option) words.emplace_back();
  }
  std::ranges::reverse(words);
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  open_missing_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  c10::initLogging();             // reads $TORCH_CPP_LOG_LEVEL, as Python does
  // Benchmarks and their peers keep what OpenMP does by itself.
  if (argc > 1 && std::string_view(argv[1]) != "bench") reynard::cli::wait_passively(argv);
  CLI::App app{
      "reynard trains, runs and measures long-context language models that forget and look up.\n"
      "Start with ./quickstart, or: reynard prepare, reynard train, reynard eval, reynard report.",
      "reynard"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "reynard " REYNARD_VERSION);
  using namespace reynard::cli;
  app.failure_message(usage_error);
  wrap_help(app);

  add_prepare(app);
  add_train(app);
  add_sweep(app);
  add_eval(app);
  add_inspect(app);
  add_report(app);
  add_compare(app);
  add_forgetting_curve(app);
  add_generate(app);
  add_chat(app);
  add_serve(app);
  add_remember(app);
  add_dictionary(app);
  add_tokenizer(app);
  add_info(app);
  add_score(app);
  add_cost(app);
  add_convert(app);
  add_bench(app);
  add_completion(app);
  add_help(app);
  reject_wrong_numbers(app);
  reject_empty_inputs(app);

  limit_memory_to_free();
  try {
    app.parse(words_backwards(app, argc, argv));
    return with_output_written(0);
  } catch (const CLI::ParseError& e) {
    return with_output_written(app.exit(e) == 0 ? 0 : 2);
  } catch (const ExitWith& e) {
    return e.code;
  } catch (const reynard::Error& e) {
    print_message("reynard: {}\n", e.what());
    return 2;
  } catch (const std::filesystem::filesystem_error& e) {  // a folder that cannot be made, ...
    print_message("reynard: {}: {}\n", e.path1().string(), e.code().message());
    return 2;
  } catch (const std::exception& e) {
    if (std::ferror(stdout) != 0) return with_output_written(2);
    if (reynard::tensor::is_out_of_memory(e)) return report_out_of_memory(e);
    print_message("reynard: internal error: {}\n", e.what());
    return 1;
  }
}
