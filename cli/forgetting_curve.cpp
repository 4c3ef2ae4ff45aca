// reynard forgetting-curve RESULT.json: memory lengths, statistics and figure of a result file,
// computed anew from the accuracies in it.

#include "reynard/evaluation/forgetting_curve.h"

#include "cli/command.h"
#include "cli/evaluation_inputs.h"
#include "cli/figure_files.h"
#include "cli/numbers.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/fields.h"
#include "reynard/config/json_file.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/report/curve_words.h"
#include "reynard/report/figure.h"
#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;
using evaluation::CurveFile;
using evaluation::CurvePoint;
using Json = nlohmann::ordered_json;

struct CurveArguments {
  std::vector<std::string> files;
  std::vector<int64_t> lengths;
  std::string output;
  int64_t train_length = 0;
  int64_t claimed = 0;
  bool json = false;
};

// Whether some length was measured more than once: else nothing says which differences are chance.
bool show_chance(const std::vector<std::vector<double>>& groups) {
  return std::ranges::any_of(groups, [](const auto& group) { return group.size() >= 2; });
}

const CurvePoint& point_at(const CurveFile& file, int64_t length) {
  std::vector<int64_t> known;
  for (const CurvePoint& point : file.points) {
    if (point.length == length) return point;
    known.push_back(point.length);
  }
  throw Error(fmt::format("forgetting-curve: --lengths {}: {} has the lengths {}",
                          length,
                          file.name,
                          fmt::join(known, ", ")));
}

// Do the accuracies differ between these lengths of one file?
Json between_lengths(const CurveFile& file, const std::vector<int64_t>& lengths) {
  std::vector<std::vector<double>> lm;
  std::vector<std::vector<double>> copy;
  for (const int64_t length : lengths) {
    lm.push_back(point_at(file, length).lm_accs);
    copy.push_back(point_at(file, length).copy_accs);
  }
  if (!show_chance(lm)) {
    throw Error(fmt::format(
        "forgetting-curve: --lengths: {} has one accuracy of each length, which shows no chance; "
        "measure it with `reynard eval --forgetting_curve.repeats=2` or more, or leave --lengths "
        "out",
        file.name));
  }
  return {{"lengths", lengths},
          {"lm", evaluation::group_tests(lm)},
          {"copy", evaluation::group_tests(copy)}};
}

// Per length that all files have, measured more than once: does the accuracy without help differ
// between them? Files that differ in the unrelated prefix alone show so whether it matters.
Json between_files(const std::vector<CurveFile>& files) {
  Json rows = Json::array();
  for (const CurvePoint& first : files.front().points) {
    std::vector<std::vector<double>> groups;
    for (const CurveFile& file : files) {
      for (const CurvePoint& point : file.points) {
        if (point.length == first.length) groups.push_back(point.lm_accs);
      }
    }
    if (groups.size() < files.size() || !show_chance(groups)) continue;
    Json row = evaluation::group_tests(groups);
    row["length"] = first.length;
    rows.push_back(std::move(row));
  }
  return rows;
}

// RULER's effective length, where `reynard eval` measured it into the same folder; else null.
Json ruler_length_beside(const fs::path& curve) {
  const auto summary = config::json_object_or_null(curve.parent_path() / "ruler.json");
  if (summary.is_null()) return nullptr;
  const nlohmann::json text = summary.value(
      nlohmann::json::json_pointer("/metrics/effective_length/text"), nlohmann::json());
  return text.is_string() ? Json(config::printable(text.get<std::string>())) : Json();
}

// The summary of `reynard eval`, so that `reynard report` reads the folder.
nlohmann::json summary_of(const CurveFile& file, int64_t train_length) {
  nlohmann::json points = nlohmann::json::array();
  for (const CurvePoint& point : file.points) points.push_back(evaluation::to_json(point));
  return {{"task", "forgetting_curve"},
          {"name", file.name},
          {"train_length", train_length},
          {"metrics", evaluation::curve_metrics(file.points)},
          {"series", {{"points", points}}}};
}

Json result_of(const CurveFile& file,
               const nlohmann::json& summary,
               const fs::path& path,
               const CurveArguments& arguments) {
  const evaluation::MemoryLengths lengths = evaluation::memory_lengths(file.points);
  Json result{{"name", file.name},
              {"fine", lengths.fine.length},
              {"fine_reached", !lengths.fine.open},
              {"coarse", lengths.coarse.length},
              {"coarse_reached", !lengths.coarse.open},
              {"significant", lengths.significant.length},
              {"significant_reached", !lengths.significant.open},
              {"copies", Json(summary.at("metrics").at("copies"))},
              {"longest", file.points.back().length},
              {"repeats", file.points.front().lm_accs.size()}};
  // A file of `reynard eval` knows the length trained on, which is what our models claim.
  const int64_t claimed = arguments.claimed > 0 ? arguments.claimed : file.train_length;
  if (claimed > 0) {
    const report::Claim claim = report::claim(summary, claimed);
    const bool known = claim == report::Claim::kConfirmed || claim == report::Claim::kDenied;
    result["claimed"] = claimed;
    result["confirms_claimed"] = known ? Json(claim == report::Claim::kConfirmed) : Json();
  }
  result["ruler_effective"] = ruler_length_beside(path);
  if (!arguments.lengths.empty()) {
    result["between_lengths"] = between_lengths(file, arguments.lengths);
  }
  result["points"] = Json::array();
  for (const CurvePoint& point : file.points) {
    result["points"].push_back(Json(evaluation::to_json(point)));
  }
  return result;
}

// ">80", to the end of the test.
std::string memory(const Json& result, const std::string& key) {
  return fmt::format(
      "{}{}", result[key + "_reached"].get<bool>() ? "" : ">", result[key].get<int64_t>());
}

// Claimed length, fine and coarse memory, the latter also without what is within noise, and RULER's
// effective length, one line per file.
void print_lengths(const std::vector<Json>& results) {
  constexpr const char* kLine = "{:24} {:>9} {:>9} {:>9} {:>9} {:>16}\n";
  fmt::print(kLine, "model", "claimed", "fine", "coarse", "by test", "RULER effective");
  for (const Json& result : results) {
    const bool claims = result.contains("claimed");
    const Json& ruler = result["ruler_effective"];
    fmt::print(kLine,
               result["name"].get<std::string>(),
               claims ? std::to_string(result["claimed"].get<int64_t>()) : "-",
               memory(result, "fine"),
               memory(result, "coarse"),
               result["copies"].is_null() ? "-" : memory(result, "significant"),
               ruler.is_string() ? ruler.get<std::string>() : "-");
  }
}

std::string claim_text(const CurveFile& file, const nlohmann::json& summary, int64_t claimed) {
  switch (report::claim(summary, claimed)) {
    case report::Claim::kConfirmed:
      return "confirmed (2 x the coarse length by test is more)";
    case report::Claim::kTooFewRepeats:
      return "too few repeats to tell (measure each length three times or more)";
    case report::Claim::kNotFarEnough:
      return fmt::format("not tested far enough (lengths up to {}; needs above {})",
                         file.points.back().length,
                         claimed / 2);
    case report::Claim::kDenied:
      break;
  }
  return report::copying(summary) == report::Copying::kYes
             ? "not confirmed (2 x the coarse length by test is no more)"
             : "not confirmed (at no length does it copy by more than chance)";
}

void print_table(const CurveFile& file, const nlohmann::json& summary, const Json& result) {
  fmt::print("{}: fine memory {}, coarse memory {}\n",
             file.name,
             report::fine_memory(summary),
             report::coarse_memory(summary));
  if (result.contains("claimed")) {
    const int64_t claimed = result["claimed"].get<int64_t>();
    fmt::print("claimed length {}: {}\n", claimed, claim_text(file, summary, claimed));
  }
  fmt::print("{:>8} {:>9} {:>7} {:>9} {:>7} {:>9} {:>9}\n",
             "length",
             "copy",
             "std",
             "LM",
             "std",
             "p",
             "p (Holm)");
  // What a single sequence leaves unknown is no number.
  const auto share = [](double value) {
    return std::isnan(value) ? "-" : fmt::format("{:.5f}", value);
  };
  const auto chance = [](double p_value) {
    return std::isnan(p_value) ? "-" : fmt::format("{:.2e}", p_value);
  };
  for (const CurvePoint& p : file.points) {
    fmt::print("{:>8} {:>9} {:>7} {:>9} {:>7} {:>9} {:>9}\n",
               p.length,
               share(p.copy_mean),
               share(p.copy_std),
               share(p.lm_mean),
               share(p.lm_std),
               chance(p.p_value),
               chance(p.adjusted_p_value));
  }
}

void print_tests(const std::string& label, const Json& tests) {
  for (const char* test : {"anova", "kruskal_wallis"}) {
    fmt::print("{} {:16} {} = {:.12f}  p = {:.12g}\n",
               label,
               test,
               std::string_view(test) == "anova" ? "F" : "H",
               tests[test]["statistic"].get<double>(),
               tests[test]["p_value"].get<double>());
  }
}

// A result of `reynard eval` says what was measured and how, which this command cannot know.
void check_not_measured(const fs::path& folder) {
  const fs::path there = folder / "forgetting_curve.json";
  if (!config::json_object_or_null(there).contains("identity")) return;
  throw Error(
      fmt::format("forgetting-curve: --out {}: {} is a result of `reynard eval`, which would lose "
                  "its settings; name another folder",
                  folder.string(),
                  there.string()));
}

void write_results(const CurveFile& file, const nlohmann::json& summary, const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw Error(
        fmt::format("forgetting-curve: cannot create {}: {}", folder.string(), failed.message()));
  }
  checkpoint::write_atomically(folder / "forgetting_curve.json",
                               config::json_text(summary, 1) + "\n");
  nlohmann::json published = nlohmann::json::array();
  for (const CurvePoint& point : file.points) published.push_back(published_json(point));
  checkpoint::write_atomically(folder / "published.json", config::json_text(published, 4) + "\n");
  report::RunResults run;
  run.name = file.name;
  run.evaluations["forgetting_curve"] = summary;
  std::optional<report::Figure> figure = report::forgetting_curve(run, 0);
  figure->id = "forgetting_curve";
  draw_figures({&*figure, 1}, folder);
}

// Each has a folder of its name.
void check_names_differ(const std::vector<CurveFile>& files) {
  std::set<std::string> names;
  for (const CurveFile& file : files) {
    if (names.insert(as_folder_name(file.name)).second) continue;
    throw Error(fmt::format(
        "forgetting-curve: two files have the name \"{}\"; change one's \"name\", or give them to "
        "different --out",
        as_folder_name(file.name)));
  }
}

void run_forgetting_curve(CurveArguments arguments) {
  using tensor::check_value;
  constexpr const char* kName = "forgetting-curve";
  check_value(arguments.train_length >= 0, kName, "--train-length", arguments.train_length, ">= 1");
  check_value(arguments.claimed >= 0, kName, "--claimed", arguments.claimed, ">= 1");
  arguments.lengths = evaluation::ascending(arguments.lengths);  // each once
  check_value(arguments.lengths.size() != 1, kName, "--lengths", "one length", "at least two");
  std::vector<CurveFile> files;
  for (const std::string& path : arguments.files) {
    files.push_back(evaluation::read_curve_file(path));
  }
  const auto output_of = [&](const CurveFile& file) {
    const fs::path folder = arguments.output;
    return files.size() == 1 ? folder : folder / as_folder_name(file.name);
  };
  if (!arguments.output.empty()) {
    if (files.size() > 1) check_names_differ(files);
    for (const CurveFile& file : files) check_not_measured(output_of(file));
  }
  std::vector<nlohmann::json> summaries;
  std::vector<Json> results;
  for (size_t i = 0; i < files.size(); ++i) {
    const int64_t trained =
        arguments.train_length > 0 ? arguments.train_length : files[i].train_length;
    summaries.push_back(summary_of(files[i], trained));
    results.push_back(result_of(files[i], summaries[i], arguments.files[i], arguments));
  }
  const Json across = files.size() > 1 ? between_files(files) : Json();

  for (size_t i = 0; i < files.size(); ++i) {
    if (!arguments.output.empty()) write_results(files[i], summaries[i], output_of(files[i]));
    if (arguments.json) {
      fmt::print("{}\n", config::json_text(results[i]));
      continue;
    }
    print_table(files[i], summaries[i], results[i]);
    if (!results[i].contains("between_lengths")) continue;
    print_tests("LM between lengths  ", results[i]["between_lengths"]["lm"]);
    print_tests("copy between lengths", results[i]["between_lengths"]["copy"]);
  }
  if (!arguments.json) print_lengths(results);
  if (files.size() == 1) return;
  if (arguments.json) {
    fmt::print("{}\n", Json{{"between_files", across}}.dump());
  } else {
    for (const Json& row : across) {
      print_tests(fmt::format("LM between files, length {:>7}", row["length"].get<int64_t>()), row);
    }
  }
}

}  // namespace

void add_forgetting_curve(CLI::App& app) {
  const auto arguments = std::make_shared<CurveArguments>();
  CLI::App* command = app.add_subcommand(
      "forgetting-curve", "Memory lengths, statistics and figure of a forgetting-curve result");
  command
      ->add_option("RESULT",
                   arguments->files,
                   "Result files: the published JSON, or forgetting_curve.json of `reynard eval`")
      ->required();
  command->add_option("-o,--out,--output",
                      arguments->output,
                      "Folder for the figure, the summary and the published format");
  command
      ->add_option("--lengths",
                   arguments->lengths,
                   "Compare the accuracies at these lengths (ANOVA, Kruskal-Wallis)")
      ->delimiter(',');
  command->add_option(
      "--train-length", arguments->train_length, "Length trained on, marked in the figure");
  command
      ->add_option(
          "--claimed",
          arguments->claimed,
          "Claimed context length, confirmed when twice the coarse length, where it is more "
          "than chance, exceeds it; default: the length trained on, where the file says it")
      ->check(above_zero());
  command->add_flag("--json", arguments->json, "Print one JSON line per file");
  command->footer(
      "Examples:\n"
      "  reynard forgetting-curve Meta-Llama-3-8B.json --claimed 8192 -o curve\n"
      "  reynard forgetting-curve runs/fox/eval/forgetting_curve.json --json\n"
      "\n"
      "Fine: the longest text copied with more than 99 % accuracy. Coarse: the longest where "
      "having seen it helps by more than one point; '>' or \"..._reached\": false means that the "
      "test ended first. By test, \"significant\": the coarse length where the paired test sees a "
      "difference (Holm-corrected); what lies beyond is within noise. With several files, also "
      "whether their accuracies without help differ by "
      "length, as between unrelated prefixes of several sources.");
  command->callback([arguments] { run_forgetting_curve(*arguments); });
}

}  // namespace reynard::cli
