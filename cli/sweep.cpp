// reynard sweep: the runs of a grid, with several seeds each, and one table of their losses.

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/message.h"
#include "cli/numbers.h"
#include "cli/repeatable.h"
#include "cli/stop_signal.h"
#include "cli/training_run.h"
#include "cli/unknown_option.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/config.h"
#include "reynard/config/json_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/check.h"
#include "reynard/training/run_checks.h"
#include "reynard/training/run_json.h"
#include "reynard/training/trainer.h"
#include "reynard/training/unread_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

struct SweepArguments {
  std::string experiment;
  std::vector<std::string> grid;  // "key=value,value"
  int64_t seeds = 1;
  std::string device;
  bool quiet = false;
};

// One combination of grid values: {"optimizer.learning_rate=1e-3", ...}.
using Point = std::vector<std::string>;

// One key and the values that it takes.
struct Axis {
  std::string key;
  std::vector<std::string> values;
};

// The commas of a value that is a list, in brackets, part no values.
std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> values(1);
  bool in_list = false;
  for (const char c : text) {
    if (c == '[' && values.back().empty()) in_list = true;
    if (c == ']') in_list = false;
    if (c == ',' && !in_list) {
      values.emplace_back();
    } else {
      values.back() += c;
    }
  }
  return values;
}

Axis axis_of(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw Error(fmt::format("--grid {}: expected section.key=value,value,...", text));
  }
  Axis axis{text.substr(0, equals), split_values(text.substr(equals + 1))};
  if (axis.key == "run.folder") {
    throw Error(
        fmt::format("--grid {}: each run has a folder of its own within --run.folder", text));
  }
  const std::set<std::string> distinct(axis.values.begin(), axis.values.end());
  if (distinct.size() < axis.values.size()) {
    throw Error(fmt::format("--grid {}: names a value twice", text));
  }
  return axis;
}

// Before they are planned, which for many takes all memory.
void check_number_of_runs(std::size_t num_points, int64_t seeds) {
  constexpr std::size_t kMostRuns = 10'000;
  if (num_points <= kMostRuns / static_cast<std::size_t>(seeds)) return;
  throw Error(
      fmt::format("sweep: {} or more points of --grid, each with --seeds {}; expected at "
                  "most {} runs in all",
                  num_points,
                  seeds,
                  kMostRuns));
}

std::vector<Point> grid_points(const SweepArguments& arguments) {
  std::vector<Point> points = {{}};
  check_number_of_runs(1, arguments.seeds);
  std::set<std::string> keys;
  for (const std::string& text : arguments.grid) {
    const Axis axis = axis_of(text);
    if (!keys.insert(axis.key).second) {
      throw Error(fmt::format(
          "--grid {}: {} has a --grid already; give all its values in one", text, axis.key));
    }
    if (arguments.seeds > 1 && (axis.key == "run.seed" || axis.key == "data.seed")) {
      throw Error(fmt::format(
          "--grid {}: --seeds {} adds to {} too, so that points would share runs; give one of both",
          text,
          arguments.seeds,
          axis.key));
    }
    check_number_of_runs(points.size() * axis.values.size(), arguments.seeds);
    std::vector<Point> longer;
    for (const Point& point : points) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().push_back(fmt::format("{}={}", axis.key, value));
      }
    }
    points = std::move(longer);
  }
  return points;
}

// Finished losses of one point, one per seed.
struct Row {
  Point point;
  std::vector<double> losses;
  std::vector<std::string> folders;

  double mean() const {
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum / static_cast<double>(losses.size());
  }
  double lowest() const { return *std::min_element(losses.begin(), losses.end()); }
  double highest() const { return *std::max_element(losses.begin(), losses.end()); }
};

std::string folder_name(const Point& point, int64_t seed) {
  constexpr std::size_t kMostBytes = 255;  // of a name in Linux's file systems
  std::string name = fmt::format("{}", fmt::join(point, ","));
  std::replace(name.begin(), name.end(), '/', '_');
  name += (name.empty() ? "" : ",") + fmt::format("seed={}", seed);
  if (name.size() > kMostBytes) {
    throw Error(
        fmt::format("--grid {}: names a folder of {} bytes; expected at most {}; give a shorter "
                    "value, such as a link to the file",
                    *std::ranges::max_element(point, {}, &std::string::size),
                    name.size(),
                    kMostBytes));
  }
  return name;
}

training::RunResult run_point(const training::Experiment& experiment,
                              const SweepArguments& arguments,
                              const std::vector<std::string>& command) {
  const fs::path saved = fs::path(experiment.run.folder) / "experiment.toml";
  if (fs::exists(saved) &&
      config::to_toml(training::read_recorded_experiment(saved)) != config::to_toml(experiment)) {
    throw Error(
        fmt::format("{}: is a run of other settings; remove it or choose another run.folder",
                    experiment.run.folder));
  }
  const auto on_the_way = training::settings_changed_on_the_way(experiment.run.folder);
  if (!on_the_way.empty()) {
    throw Error(fmt::format(
        "{}: is a run whose settings were changed on the way ({}), not one of this point; remove "
        "it or choose another run.folder",
        experiment.run.folder,
        fmt::join(on_the_way, ", ")));
  }
  if (const auto finished = training::finished_result(experiment.run.folder)) {
    const std::vector<std::string> changed = training::changed_texts(experiment, *finished);
    if (changed.empty()) return *finished;
    throw Error(
        fmt::format("{}: is a run of another text: {} was changed since; remove it or choose "
                    "another run.folder",
                    experiment.run.folder,
                    fmt::join(changed, " and ")));
  }
  const training::RunResult result = run_training(
      experiment,
      {.resume = fs::exists(experiment.run.folder), .quiet = arguments.quiet, .command = command});
  if (!result.finished) {
    print_message("stopped; the same command goes on with the sweep\n");
    throw ExitWith{kInterruptedExitCode};
  }
  return result;
}

std::string table(const std::vector<Row>& rows, bool held_out) {
  std::string out = fmt::format("| settings | mean {}loss | range | runs |\n|---|---|---|---|\n",
                                held_out ? "held-out " : "");
  for (const Row& row : rows) {
    out += fmt::format(
        "| {} | {:.4f} | {:.4f} to {:.4f} | {} |\n",
        row.point.empty() ? "as in the file" : fmt::format("{}", fmt::join(row.point, " ")),
        row.mean(),
        row.lowest(),
        row.highest(),
        row.losses.size());
  }
  return out;
}

// A run that diverged.
struct Failure {
  Point point;
  std::string folder, error;
};

nlohmann::ordered_json rows_json(const std::vector<Row>& rows,
                                 const std::vector<Failure>& failures,
                                 bool held_out) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    list.push_back({{"settings", row.point},
                    {"mean", row.mean()},
                    {"min", row.lowest()},
                    {"max", row.highest()},
                    {"losses", row.losses},
                    {"folders", row.folders}});
  }
  nlohmann::ordered_json diverged = nlohmann::ordered_json::array();
  for (const Failure& failure : failures) {
    diverged.push_back(
        {{"settings", failure.point}, {"folder", failure.folder}, {"error", failure.error}});
  }
  return {{"loss", held_out ? "held_out" : "training"}, {"rows", list}, {"diverged", diverged}};
}

// Throws where the sweep's file is another's.
void check_is_table(const fs::path& file) {
  std::error_code none;
  if (!fs::exists(file) || fs::file_size(file, none) == 0) return;
  const nlohmann::json old = config::json_object_or_null(file);
  if (old.contains("loss") && old.contains("rows")) return;
  throw Error(fmt::format(
      "sweep: {} exists and is not a table of sweep; remove it or give another run.folder",
      file.string()));
}

// One run of the sweep, as `reynard train` would be told to do it.
struct PlannedRun {
  training::Experiment experiment;
  std::vector<std::string> command;
};

// One value of a key in the place of those that were given.
void replace(std::vector<std::string>& settings, const std::string& key, const std::string& value) {
  const std::string option = fmt::format("--{}=", key);
  std::erase_if(settings, [&](const std::string& given) { return given.starts_with(option); });
  settings.push_back(option + value);
}

std::vector<std::string> settings_of(const std::vector<std::string>& overrides,
                                     const Point& point) {
  std::vector<std::string> settings = overrides;
  for (const std::string& setting : point) settings.push_back("--" + setting);
  return settings;
}

// A key that some points read is at its default in those that do not.
void check_keys_are_read(const SweepArguments& arguments,
                         const std::vector<std::string>& overrides,
                         const std::vector<Point>& points) {
  std::map<std::string, std::size_t> unread;  // points that do not read a key
  config::Problems problems(arguments.experiment);
  for (const Point& point : points) {
    const auto experiment =
        training::read_variant(arguments.experiment, settings_of(overrides, point));
    for (const auto& [key, needed] : training::unread_keys(experiment)) {
      if (++unread[key] == points.size()) problems.add(key, needed);
    }
  }
  problems.throw_if_any();
}

// The settings of a point with the defaults of what it does not read, as `reynard train` takes
// them.
std::vector<std::string> without_unread_keys(const std::string& file,
                                             std::vector<std::string> settings) {
  const auto given = training::read_variant(file, settings);
  const auto keys = config::describe_section(training::without_unread_keys(given));
  const auto given_keys = config::describe_section(given);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].default_value == given_keys[i].default_value) continue;
    replace(settings, keys[i].path, keys[i].default_override);
  }
  return settings;
}

// Seeds of the runs of a point are first, first + 1, ...
void check_seeds(const char* key, int64_t first, int64_t seeds) {
  const int64_t most = std::numeric_limits<int64_t>::max() - (seeds - 1);
  if (first <= most) return;
  throw Error(fmt::format("{} = {}; must be at most {} with --seeds {}", key, first, most, seeds));
}

// The runs of one point, one per seed.
std::vector<PlannedRun> plan_point(const SweepArguments& arguments,
                                   const std::vector<std::string>& overrides,
                                   const Point& point) {
  const std::vector<std::string> settings =
      without_unread_keys(arguments.experiment, settings_of(overrides, point));
  std::vector<PlannedRun> runs;
  for (int64_t seed = 0; seed < arguments.seeds; ++seed) {
    std::vector<std::string> own = settings;
    auto experiment = config::read_toml<training::Experiment>(arguments.experiment, own);
    models::check_can_be_saved(experiment.model);
    training::check_budget(experiment);
    check_seeds("run.seed", experiment.run.seed, arguments.seeds);
    check_seeds("data.seed", experiment.data.seed, arguments.seeds);
    experiment.run.folder = (fs::path(experiment.run.folder) / folder_name(point, seed)).string();
    experiment.run.seed += seed;
    experiment.data.seed += seed;
    replace(own, "run.folder", experiment.run.folder);
    replace(own, "run.seed", std::to_string(experiment.run.seed));
    replace(own, "data.seed", std::to_string(experiment.data.seed));
    std::vector<std::string> command = {"reynard", "train", arguments.experiment};
    command.insert(command.end(), own.begin(), own.end());
    runs.push_back({std::move(experiment), std::move(command)});
  }
  return runs;
}

// However the values of a grid are spelt, and though folder_name() writes _ for /.
void check_distinct(const std::vector<std::vector<PlannedRun>>& plan) {
  std::map<std::string, std::string> folders;  // by the settings of their runs
  std::set<std::string> names;
  for (const std::vector<PlannedRun>& runs : plan) {
    for (const PlannedRun& run : runs) {
      training::Experiment settings = run.experiment;
      settings.run.folder.clear();
      const auto [known, is_new] =
          folders.emplace(config::to_toml(settings), run.experiment.run.folder);
      if (!is_new) {
        throw Error(fmt::format("sweep: {} and {} would be the same run; name each value once",
                                known->second,
                                run.experiment.run.folder));
      }
      if (!names.insert(run.experiment.run.folder).second) {
        throw Error(
            fmt::format("sweep: two runs would share the folder {}, whose name has _ for each / of "
                        "a value; rename what one of them names",
                        run.experiment.run.folder));
      }
    }
  }
}

void run_sweep(const SweepArguments& arguments, std::vector<std::string> overrides) {
  if (!arguments.device.empty()) overrides.push_back("--training.device=" + arguments.device);
  const std::vector<Point> points = grid_points(arguments);
  // All are planned before the first is run: a mistake in the last shows at once.
  check_keys_are_read(arguments, overrides, points);
  std::vector<std::vector<PlannedRun>> plan;
  for (const Point& point : points) plan.push_back(plan_point(arguments, overrides, point));
  check_distinct(plan);
  const fs::path folder = fs::path(plan.front().front().experiment.run.folder).parent_path();
  if (fs::exists(folder / "experiment.toml")) {
    throw Error(fmt::format("run.folder = {}: holds a run; choose a folder for the sweep's runs",
                            folder.string()));
  }
  const fs::path file = folder / "sweep.json";
  check_is_table(file);
  std::vector<Row> rows;
  std::vector<Failure> failures;
  bool held_out = true;
  for (size_t i = 0; i < points.size(); ++i) {
    Row row{.point = points[i], .losses = {}, .folders = {}};
    for (const auto& [experiment, command] : plan[i]) {
      try {
        const training::RunResult result = run_point(experiment, arguments, command);
        const double loss = result.validation_loss.value_or(result.loss);
        if (!std::isfinite(loss)) throw training::Diverged("its loss is not finite");
        held_out = held_out && result.validation_loss.has_value();
        row.losses.push_back(loss);
        row.folders.push_back(experiment.run.folder);
      } catch (const training::Diverged& error) {
        print_message("{}: {}\n", experiment.run.folder, error.what());
        failures.push_back({points[i], experiment.run.folder, error.what()});
      }
    }
    if (!row.losses.empty()) rows.push_back(row);
  }
  std::stable_sort(
      rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.mean() < b.mean(); });
  checkpoint::write_atomically(file, rows_json(rows, failures, held_out).dump(2) + "\n");
  fmt::print("{}best first; also in {}\n", table(rows, held_out), file.string());
  if (!failures.empty()) {
    throw Error(fmt::format("sweep: {} of the runs diverged and {} not in the table: {}",
                            failures.size(),
                            failures.size() == 1 ? "is" : "are",
                            failures.front().folder));
  }
}

}  // namespace

void add_sweep(CLI::App& app) {
  auto arguments = std::make_shared<SweepArguments>();
  CLI::App* sweep = app.add_subcommand(
      "sweep", "Train every point of a grid, with several seeds, and tabulate the losses");
  sweep->add_option("EXPERIMENT", arguments->experiment, "experiment file (TOML)")->required();
  make_repeatable(*sweep->add_option(
      "--grid",
      arguments->grid,
      "section.key=value,value,... (lists in brackets: key=[1,2],[4]); may be given several times: "
      "all combinations"));
  sweep
      ->add_option("--seeds",
                   arguments->seeds,
                   "runs of each point: seeds 0, 1, ... are added to run.seed and data.seed")
      ->capture_default_str()
      ->check(above_zero());
  add_device_option(*sweep, arguments->device);
  sweep->add_flag("--quiet", arguments->quiet, "no progress on stderr");
  sweep->allow_extras();
  sweep->footer(
      "Example:\n"
      "  reynard sweep configs/quickstart/fox.toml --run.folder=runs/rates --grid "
      "optimizer.learning_rate=1e-3,2e-3 --seeds 3\n"
      "\n"
      "Every key of the experiment can be given as --section.key=value, for all runs; `reynard "
      "train --help` lists them. configs/quickstart reads the text that ./quickstart prepares; "
      "--data.path=FILE.tokens names another.\n"
      "\n"
      "Runs lie in run.folder, one folder each; finished ones are reused, so the same command goes "
      "on after Ctrl-C. Runs that diverge are named and left out of the table. Losses are held-out "
      "losses where the experiment has validation.path.");
  sweep->callback([arguments, sweep] {
    check_options(*sweep);
    run_sweep(*arguments, sweep->remaining());
  });
}

}  // namespace reynard::cli
