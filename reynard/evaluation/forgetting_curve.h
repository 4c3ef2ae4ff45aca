#pragma once
// The forgetting curve (Liu et al. 2024, arXiv 2410.04727) as plain functions: which lengths are
// tested, where targets are sampled, how the two sequences are laid out, and how accuracies become
// fine and coarse memory lengths. The task that runs it is tasks/forgetting_curve.cpp; definitions
// and where paper and published code differ: docs/evaluation.md.

#include "reynard/config/fields.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

enum class CurveGrid {
  kPaper,  // l/n, 2l/n, ..., l
  kCode,   // 8, ..., l evenly spaced: the published script
  kLog,    // 8, ..., l evenly spaced in log: the published script with log scale
};
config::EnumNames<CurveGrid> enum_names(CurveGrid);

// Target lengths, ascending and distinct. Throws reynard::Error for lengths or counts below the
// grid's smallest.
std::vector<int64_t> target_lengths(CurveGrid grid, int64_t longest, int64_t count);

// First token of every target: begins[length][repeat], drawn as the published script does, from one
// Python random stream over ascending lengths; targets end before the last `length` tokens, which
// are the irrelevant text.
std::vector<std::vector<int64_t>> target_begins(std::span<const int64_t> lengths,
                                                int64_t repeats,
                                                int64_t corpus_tokens,
                                                uint64_t seed);

// One teacher-forced sequence [bos] prefix [bos] target [eos] and what of it is scored: the last
// ceil(L/2) tokens of the target. A missing bos or eos is left out.
struct CurveSequence {
  std::vector<int64_t> tokens;
  int64_t scored_begin = 0;
  int64_t scored_end = 0;
};
CurveSequence curve_sequence(std::span<const int64_t> prefix,
                             std::span<const int64_t> target,
                             std::optional<int64_t> bos,
                             std::optional<int64_t> eos);

// Accuracies of one length, one per repeat, and the statistics on them.
struct CurvePoint {
  int64_t length = 0;
  std::vector<double> lm_accs, copy_accs;
  double lm_mean = 0, lm_std = 0;          // population standard deviation
  double copy_mean = 0, copy_std = 0;      // population standard deviation
  double p_value = std::nan("");           // paired two-sided t-test; NaN: one repeat
  bool normality = false;                  // Shapiro-Wilk p > 0.05 for both lists
  bool variance_homogeneity = false;       // Levene p > 0.05
  double adjusted_p_value = std::nan("");  // Holm over the lengths of the curve that have a p
  bool differs = false;                    // copy beats LM and adjusted p < 0.05
  double noise = std::nan("");  // half width of the 95 % interval of mean(copy - lm); NaN: unknown
  // Mean loss of the scored tokens, nats; empty in results of the published script.
  std::optional<double> lm_loss = {}, copy_loss = {};
};
// Statistics of one length by itself (no correction over lengths yet).
CurvePoint curve_point(int64_t length, std::vector<double> lm_accs, std::vector<double> copy_accs);
// Fills adjusted_p_value and differs of all points. Where all repeats of a length gain the same, p
// is taken as if one of them had gained one token less.
void compare_over_lengths(std::vector<CurvePoint>& points);

// A memory length: the longest tested length that qualifies; `open` when it is the last tested one
// (printed as ">4096").
struct MemoryLength {
  int64_t length = 0;
  bool open = false;
};
struct MemoryLengths {
  MemoryLength fine;         // copy accuracy > 0.99
  MemoryLength coarse;       // copy - lm accuracy > 0.01
  MemoryLength significant;  // the same where the paired test sees a difference
};
MemoryLengths memory_lengths(std::span<const CurvePoint> points);

std::string to_string(const MemoryLength& length);

// Whether having seen a text helps at some length by more than chance. Nothing where no length does
// and none has three repeats: with two the paired test has one degree of freedom, and a length must
// gain hundreds of times its error to stand out from thirty.
std::optional<bool> copies(std::span<const CurvePoint> points);

// What a curve says in numbers: fine_length, coarse_length and significant_length as {"length",
// "open", "text"}, and `copies`, null where too few repeats tell nothing.
nlohmann::json curve_metrics(std::span<const CurvePoint> points);

// The published result format: length, lm_mean, ..., normality{...}.
nlohmann::json published_json(const CurvePoint& point);
// The same with our fields added.
nlohmann::json to_json(const CurvePoint& point);

// Whether groups of accuracies differ: {"anova": {"statistic", "p_value"}, "kruskal_wallis": ...}.
nlohmann::ordered_json group_tests(std::span<const std::vector<double>> groups);

// A result file: the published JSON (an array), or a summary that `reynard eval` wrote. All
// statistics are computed anew from the accuracies of the repeats.
struct CurveFile {
  std::string name;          // of the model
  int64_t train_length = 0;  // 0: the file does not say
  std::vector<CurvePoint> points;
};
// Throws reynard::Error naming file, entry and field where it is not such a file.
CurveFile read_curve_file(const std::filesystem::path& path);

}  // namespace reynard::evaluation
