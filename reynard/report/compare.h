#pragma once
// Which differences between runs are more than chance: results of the same samples are paired, the
// mean difference is resampled, and all tests of a page are corrected together.

#include "reynard/report/bootstrap.h"
#include "reynard/report/run_results.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::report {

// One quantity of two runs, over the samples that both measured under the same settings on the same
// text.
struct Difference {
  std::string task;
  std::string quantity;  // "loss (nats per token)", "score"
  bool lower_is_better = false;
  std::string unit;              // of the difference: "nats", "points"
  size_t first = 0, second = 0;  // indices of the runs
  int64_t samples = 0;
  double first_mean = 0, second_mean = 0;
  Bootstrap of;                 // first - second
  double adjusted_p_value = 1;  // Holm over all differences of the page
  bool same_recipe = false;     // the runs differ by the seed of their training alone
  double margin = 0;            // what another seed of a run may change, in the unit
  bool differs = false;         // adjusted p < 0.05, more than the margin, and not the same recipe
  bool within_margin = false;   // adjusted p < 0.05, but not more than the margin
};

struct CompareOptions {
  BootstrapOptions bootstrap = {};
  // Losses must differ by more than this many nats: training again with another seed moves them
  // at least as much, which no resampling of one run's samples can see. Where the page has several
  // runs of one recipe, the margin of every quantity is what these runs show.
  double loss_margin = 0.005;
  std::string task;  // the only one that is compared; empty: all
};

struct Comparison {
  std::vector<Difference> differences;
  std::vector<std::string>
      left_out;              // why a task has no difference of some pair, one sentence each
  bool shares_task = false;  // at least one task was measured for two of the runs
  bool seeds_known = false;  // there are several runs of at least one recipe
};
// Throws reynard::Error for two runs of one recipe with the same weights: what lies between them
// would pass for what a seed changes.
Comparison compare(const std::vector<RunResults>& runs, const CompareOptions& options = {});

// Whether samples of one id are the same in two summaries of a task: settings and text are.
bool same_samples(const nlohmann::json& a, const nlohmann::json& b);

// Whether there are two seeds of a recipe that measured the task on the same samples, and no two
// runs of one recipe with the same weights that did: whether compare() can say what seeds move it
// by.
bool seeds_are_known(const std::vector<RunResults>& runs, std::string_view task);

// "no difference between fox and lru (...)", "fox and lru differ by no more than the margin (...)",
// "fox is better than lru by 0.12 nats (95 %: 0.10 to
// 0.14; margin 0.005)". first, second: what its runs are called there.
std::string sentence_of(const Difference& difference,
                        const std::string& first,
                        const std::string& second);

}  // namespace reynard::report
