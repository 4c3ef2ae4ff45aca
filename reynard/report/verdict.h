#pragma once
// The results in words and in one table: what each run remembers, how runs compare, and whether a
// difference is more than noise.

#include "reynard/report/figure.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::report {

// One row of the table at the top: a quantity, what it means, and its value for each run.
struct SummaryRow {
  std::string quantity;             // plain text
  std::string meaning;              // plain text
  std::vector<std::string> values;  // plain text, one per run; empty: not measured
};

// Only rows that at least one run has a value for.
std::vector<SummaryRow> summary_rows(const Runs& runs);

struct VerdictOptions {
  // Training tokens after which such a model copies; 0: not known. Named, with the minutes that
  // they take at the run's own speed, where a run does not copy.
  int64_t tokens_to_copy = 0;
  bool compares = true;  // the losses of the first run and of each other; false: said elsewhere
};

// Plain sentences, the most important first.
std::vector<std::string> verdict(const Runs& runs, const VerdictOptions& options);

// Difference of two runs' losses over the rows that both measured.
struct PairedLoss {
  int64_t rows = 0;
  double difference = 0;      // mean of first - second, nats per token
  double standard_error = 0;  // of that mean over rows
};
PairedLoss paired_loss(const RunResults& first, const RunResults& second);

// Median of the positive tokens_per_s of metrics.jsonl, the largest peak_memory_bytes and the last
// tokens; NaN when there are none.
double median_speed(const RunResults& run);
double peak_memory(const RunResults& run);
double trained_tokens(const RunResults& run);

std::string bytes_text(double bytes);  // "1.2 GiB"

}  // namespace reynard::report
