// reynard report RUN...: one self-contained page that compares runs.

#include "cli/command.h"
#include "cli/command_line.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/report/page.h"
#include "reynard/report/verdict.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output = "report.html";
  std::string png;
  int64_t smoothing = 101;
  int64_t tokens_to_copy = 0;
};

// Runs python/figures.py with the environment's Python; true when it exits with 0.
bool run_figures(const std::string& what, const fs::path& path) {
  const char* chosen = std::getenv("REYNARD_PYTHON");
  const std::string python = chosen && *chosen ? chosen : REYNARD_PYTHON;
  std::vector<std::string> words{
      python, REYNARD_SOURCE_DIR "/python/figures.py", what, path.string()};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ) != 0) return false;
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string figures_command(const std::string& what, const fs::path& path) {
  return fmt::format(
      "{} {}/python/figures.py {} {}", REYNARD_PYTHON, REYNARD_SOURCE_DIR, what, path.string());
}

// The JavaScript that draws the figures: made once from the vl-convert wheel, then kept beside the
// program.
std::string vega_javascript() {
  const char* chosen = std::getenv("REYNARD_VEGA");
  const fs::path bundle = chosen && *chosen ? fs::path(chosen)
                                            : fs::read_symlink("/proc/self/exe").parent_path() /
                                                  "../share/vega-embed.js";
  if (!fs::exists(bundle) && !run_figures("bundle", bundle)) {
    throw Error(fmt::format(
        "report: {} is missing (the JavaScript that draws the figures) and could not be made; "
        "install scripts/requirements.txt and run `{}`",
        bundle.string(),
        figures_command("bundle", bundle)));
  }
  std::ifstream in(bundle, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.str().find("vegaEmbed") == std::string::npos) {
    throw Error(fmt::format(
        "report: {} does not hold the Vega bundle; delete it and run this again", bundle.string()));
  }
  return text.str();
}

void write_figures(const report::Runs& runs, const ReportArguments& arguments) {
  const fs::path folder = arguments.png;
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw Error(fmt::format("report: cannot create {}: {}", folder.string(), failed.message()));
  }
  for (const report::FigureGroup& group : report::figure_groups(runs, {arguments.smoothing})) {
    for (const report::Figure& figure : group.figures) {
      checkpoint::write_atomically(folder / (figure.id + ".vl.json"), figure.spec.dump());
    }
  }
  if (!run_figures("png", folder)) {
    throw Error(
        fmt::format("report: the figures could not be drawn; run `{}` to see why (the "
                    "specifications are written)",
                    figures_command("png", folder)));
  }
}

// The page's table in at most ten lines of the terminal, the page's address last.
void print_summary(const report::Runs& runs, const fs::path& page) {
  constexpr size_t kMaxRows = 8;
  std::vector<report::SummaryRow> rows = report::summary_rows(runs);
  std::erase_if(rows, [](const report::SummaryRow& row) {
    return row.quantity == "Non-embedding parameters" || row.quantity == "Peak memory" ||
           row.quantity == "Held-out loss" ||
           row.quantity == "Loss within → past the trained length";
  });
  if (rows.size() > kMaxRows) rows.resize(kMaxRows);
  constexpr int kWidth = 28;
  fmt::print("{:{}}", "", kWidth);
  for (const report::RunResults& run : runs) fmt::print("{:>{}}", run.name, kWidth - 4);
  fmt::print("\n");
  for (const report::SummaryRow& row : rows) {
    fmt::print("{:{}}", row.quantity, kWidth);
    for (const std::string& value : row.values) {
      fmt::print("{:>{}}", value.empty() ? "-" : value, kWidth - 4);
    }
    fmt::print("\n");
  }
  fmt::print("{}\n", fs::absolute(page).lexically_normal().string());
}

void report(const ReportArguments& arguments) {
  if (arguments.smoothing < 1) {
    throw Error(fmt::format("report: --smoothing = {}; expected >= 1", arguments.smoothing));
  }
  std::vector<fs::path> folders(arguments.runs.begin(), arguments.runs.end());
  const report::Runs runs = report::read_runs(folders);
  report::PageOptions options;
  options.figures.smoothing_window = arguments.smoothing;
  options.tokens_to_copy = arguments.tokens_to_copy;
  options.command = command_line();
  const fs::path output = arguments.output;
  if (output.has_parent_path()) fs::create_directories(output.parent_path());
  checkpoint::write_atomically(output, report::page(runs, options, vega_javascript()));
  if (!arguments.png.empty()) write_figures(runs, arguments);
  print_summary(runs, output);
}

}  // namespace

void add_report(CLI::App& app) {
  const auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand("report", "Compare runs on one self-contained HTML page");
  command
      ->add_option("RUN", arguments->runs, "Run folders, or folders written by `reynard eval -o`")
      ->required();
  command->add_option("-o,--output", arguments->output, "The page")->capture_default_str();
  command->add_option("--png", arguments->png, "Also write every figure as PNG into this folder");
  command
      ->add_option("--smoothing",
                   arguments->smoothing,
                   "Positions of the centred mean in loss by position; 1: none")
      ->capture_default_str();
  command->add_option("--tokens-to-copy",
                      arguments->tokens_to_copy,
                      "Training tokens after which such a model copies; named where one does not");
  command->callback([arguments] { report(*arguments); });
}

}  // namespace reynard::cli
