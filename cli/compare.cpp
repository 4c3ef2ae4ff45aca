// reynard compare A B ...: which differences between runs are more than chance.

#include "reynard/report/compare.h"

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/figure_files.h"
#include "cli/message.h"
#include "cli/output_file.h"
#include "reynard/config/fields.h"
#include "reynard/config/json_file.h"
#include "reynard/report/page.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

struct CompareArguments {
  std::vector<std::string> runs;
  std::string output = "compare.html";
  report::CompareOptions options;
  int64_t seed = 0;
  bool json = false;
};

nlohmann::ordered_json json_of(const report::Difference& difference, const report::Runs& runs) {
  return {{"task", difference.task},
          {"quantity", difference.quantity},
          {"unit", difference.unit},
          {"first", runs[difference.first].name},
          {"second", runs[difference.second].name},
          {"first_folder", runs[difference.first].folder.string()},
          {"second_folder", runs[difference.second].folder.string()},
          {"samples", difference.samples},
          {"first_mean", difference.first_mean},
          {"second_mean", difference.second_mean},
          {"difference", difference.of.mean},
          {"low", difference.of.low},
          {"high", difference.of.high},
          {"p_value", difference.of.p_value},
          {"adjusted_p_value", difference.adjusted_p_value},
          {"same_recipe", difference.same_recipe},
          {"margin", difference.margin},
          {"within_margin", difference.within_margin},
          {"differs", difference.differs}};
}

// A run beside itself would pass for two seeds of one recipe.
void check_are_different(const std::vector<std::string>& runs) {
  std::map<std::filesystem::path, std::string> known;
  for (const std::string& run : runs) {
    std::error_code unknown;
    const auto [other, is_new] =
        known.emplace(std::filesystem::weakly_canonical(run, unknown), run);
    if (!is_new && !unknown) {
      throw Error(
          fmt::format("compare: {} and {} are one folder; name each run once", other->second, run));
    }
  }
}

void run_compare(const CompareArguments& arguments) {
  using tensor::check_value;
  check_value(arguments.runs.size() >= 2, "compare", "RUN", "one run", "at least two");
  check_are_different(arguments.runs);
  check_value(arguments.seed >= 0, "compare", "--seed", arguments.seed, ">= 0");
  check_value(arguments.options.bootstrap.resamples >= 99,
              "compare",
              "--resamples",
              arguments.options.bootstrap.resamples,
              ">= 99");
  check_value(arguments.options.loss_margin >= 0,
              "compare",
              "--loss-margin",
              fmt::format("{}", arguments.options.loss_margin),
              ">= 0");
  if (!arguments.json) check_output_page("compare", arguments.output);
  const report::Runs runs = report::read_runs({arguments.runs.begin(), arguments.runs.end()});
  report::CompareOptions options = arguments.options;
  options.bootstrap.seed = static_cast<uint64_t>(arguments.seed);
  const report::Comparison comparison = report::compare(runs, options);
  std::vector<std::string> left_out;
  for (const std::string& reason : comparison.left_out) {
    left_out.push_back("not compared: " + reason);
  }
  if (!comparison.shares_task) {
    left_out.insert(left_out.begin(),
                    "compare: no task was measured for two of the runs; run `reynard eval` on each "
                    "with the same tasks and text");
    throw Error(fmt::format("{}", fmt::join(left_out, "\n")));
  }
  if (arguments.json) {
    for (const report::Difference& difference : comparison.differences) {
      fmt::print("{}\n", config::json_text(json_of(difference, runs)));
    }
    for (const std::string& line : left_out) print_message("{}\n", line);
    return;
  }
  report::PageOptions page;
  page.comparison = &comparison;
  page.command = command_line();
  const fs::path output = arguments.output;
  write_output(output, report::page(runs, page, vega_javascript()));
  for (const report::Difference& difference : comparison.differences) {
    const std::string sentence = report::sentence_of(difference,
                                                     runs[difference.first].folder.string(),
                                                     runs[difference.second].folder.string());
    fmt::print("{}\n", config::printable(sentence));
  }
  for (const std::string& line : left_out) fmt::print("{}\n", config::printable(line));
  fmt::print("{}\n", fs::absolute(output).lexically_normal().string());
}

}  // namespace

void add_compare(CLI::App& app) {
  const auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command =
      app.add_subcommand("compare", "Say which differences between runs are more than chance");
  command
      ->add_option("RUN", arguments->runs, "Run folders, or folders written by `reynard eval -o`")
      ->required();
  command->add_option("-o,--output", arguments->output, "The page")->capture_default_str();
  command
      ->add_option(
          "--loss-margin",
          arguments->options.loss_margin,
          "Nats that losses must differ by at least to count: what another seed would change")
      ->capture_default_str();
  command
      ->add_option(
          "--resamples", arguments->options.bootstrap.resamples, "Resamples of the bootstrap")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Seed of the bootstrap")->capture_default_str();
  command->add_flag("--json",
                    arguments->json,
                    "Print one JSON line per difference, no page; what is left out goes to stderr");
  command->footer(
      "Samples are paired, so both runs must have been measured with the same settings on the same "
      "text. All differences of the page are corrected together (Holm). Several runs of one recipe "
      "(equal but for their seed) show what the seed alone moves; then only what lies farther "
      "apart differs.\n"
      "\n"
      "Example: reynard compare runs/fox runs/transformer -o compare.html");
  command->callback([arguments] { run_compare(*arguments); });
}

}  // namespace reynard::cli
