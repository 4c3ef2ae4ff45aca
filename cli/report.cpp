// reynard report RUN...: one self-contained page that compares runs.

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/figure_files.h"
#include "cli/numbers.h"
#include "cli/output_file.h"
#include "cli/wrapped_help.h"
#include "reynard/config/fields.h"
#include "reynard/report/csv.h"
#include "reynard/report/page.h"
#include "reynard/report/verdict.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> runs;
  std::string output = "report.html";
  std::string png;
  std::string csv;
  int64_t smoothing = 101;
  int64_t tokens_to_copy = 0;
};

// The page's table in at most ten lines of the terminal, below each other where that is too narrow,
// what is not used, the page's address last.
void print_summary(const report::Runs& runs, const fs::path& page) {
  constexpr size_t kMaxRows = 8;
  std::vector<report::SummaryRow> rows = report::summary_rows(runs);
  std::erase_if(rows, [](const report::SummaryRow& row) {
    return row.quantity == "Non-embedding parameters" || row.quantity == "Peak memory" ||
           row.quantity == "Held-out loss" ||
           row.quantity == "Loss within → past the trained length";
  });
  if (rows.size() > kMaxRows) rows.resize(kMaxRows);
  constexpr size_t kWidth = 28, kValueWidth = 12;
  const auto value_of = [](const report::SummaryRow& row, size_t run) {
    return row.values[run].empty() ? std::string("-") : config::printable(row.values[run]);
  };
  std::vector<size_t> widths(runs.size(), kValueWidth);
  for (size_t run = 0; run < runs.size(); ++run) {
    widths[run] = std::max(widths[run], runs[run].name.size());
    for (const auto& row : rows) widths[run] = std::max(widths[run], value_of(row, run).size());
  }
  const auto print_row = [&](const std::string& quantity, const auto& text_of) {
    fmt::print("{:{}}", quantity, kWidth);
    for (size_t run = 0; run < runs.size(); ++run) {
      fmt::print("  {:>{}}", text_of(run), widths[run]);
    }
    fmt::print("\n");
  };
  size_t width = kWidth;
  for (const size_t of_run : widths) width += 2 + of_run;
  if (width <= output_columns()) {
    print_row("", [&](size_t run) { return runs[run].name; });
    for (const report::SummaryRow& row : rows) {
      print_row(row.quantity, [&](size_t run) { return value_of(row, run); });
    }
  } else {  // a block per run
    for (size_t run = 0; run < runs.size(); ++run) {
      fmt::print("{}\n", runs[run].name);
      for (const report::SummaryRow& row : rows) {
        fmt::print("  {:{}}  {}\n", row.quantity, kWidth, value_of(row, run));
      }
    }
  }
  for (const report::RunResults& run : runs) {
    for (const std::string& reason : run.left_out) {
      fmt::print("not used: {}\n", config::printable(reason));
    }
  }
  fmt::print("{}\n", fs::absolute(page).lexically_normal().string());
}

void report(const ReportArguments& arguments) {
  if (arguments.smoothing < 1 || arguments.smoothing % 2 == 0) {
    throw Error(
        fmt::format("report: --smoothing = {}; expected an odd number: a centred mean has as many "
                    "positions on either side",
                    arguments.smoothing));
  }
  check_output_page("report", arguments.output);
  if (!arguments.csv.empty()) {
    check_output("report", arguments.csv, report::kCsvHeader, "such a table", "--csv");
  }
  std::vector<fs::path> folders(arguments.runs.begin(), arguments.runs.end());
  const report::Runs runs = report::read_runs(folders);
  report::PageOptions options;
  options.figures.smoothing_window = arguments.smoothing;
  options.tokens_to_copy = arguments.tokens_to_copy;
  options.command = command_line();
  const fs::path output = arguments.output;
  write_output(output, report::page(runs, options, vega_javascript()));
  if (!arguments.csv.empty()) write_output(arguments.csv, report::csv(runs));
  if (!arguments.png.empty()) {
    std::vector<report::Figure> figures;
    for (report::FigureGroup& group : report::figure_groups(runs, options.figures)) {
      for (report::Figure& figure : group.figures) figures.push_back(std::move(figure));
    }
    draw_figures(figures, arguments.png);
  }
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
  command->add_option(
      "--png",
      arguments->png,
      "Also write every figure as PNG and as Vega-Lite (.vl.json) into this folder");
  command->add_option(
      "--csv", arguments->csv, "Also write every metric of every run into this table (RFC 4180)");
  command
      ->add_option("--smoothing",
                   arguments->smoothing,
                   "Positions of the centred mean in loss by position, an odd number; 1: none")
      ->capture_default_str();
  command
      ->add_option("--tokens-to-copy",
                   arguments->tokens_to_copy,
                   "Training tokens after which such a model copies; named where one does not")
      ->check(above_zero());
  command->footer(
      "Examples:\n"
      "  reynard report runs/fox\n"
      "  reynard report runs/fox runs/transformer -o report.html --png figures\n");
  command->callback([arguments] { report(*arguments); });
}

}  // namespace reynard::cli
