#include "reynard/report/curve_words.h"

#include "reynard/report/figure_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reynard::report {

namespace {

// Fewer than three repeats cannot tell a gain from chance (docs/evaluation.md).
constexpr size_t kFewestRepeats = 3;

// Of the length that has most; 0: the summary does not say.
size_t num_repeats(const nlohmann::json& summary) {
  size_t most = 0;
  for (const nlohmann::json& point : list_at(summary, "/series/points")) {
    most = std::max(most, list_at(point, "/lm_accs").size());
  }
  return most;
}

CoarseLength length_at(const nlohmann::json& summary, const std::string& key) {
  const std::string at = "/metrics/" + key;
  return {number_at(summary, at + "/length"), text_at(summary, at + "/text")};
}

std::string tokens(const std::string& length) {
  if (length.empty()) return "";
  return length + (length == "1" ? " token" : " tokens");
}

// ">1024 tokens" inside of a sentence.
std::string in_words(const std::string& length) {
  return length.starts_with('>') ? "more than " + length.substr(1) : length;
}

// How long to train until such a model copies, at the speed that the run had.
std::string copy_advice(int64_t tokens_to_copy, double tokens_per_s) {
  if (tokens_to_copy <= 0 || std::isnan(tokens_per_s)) return "";
  const double minutes = std::ceil(static_cast<double>(tokens_to_copy) / tokens_per_s / 60);
  return fmt::format(" Such a model did after {} training tokens: on this machine, --minutes {:g}.",
                     grouped(tokens_to_copy),
                     minutes);
}

std::string remembers_sentence(const std::string& name,
                               const std::string& fine,
                               const CoarseLength& coarse) {
  const std::string verbatim =
      fine == "0 tokens"
          ? std::string(
                "repeats no tested length word for word (fine memory: copies with more than "
                "99 % accuracy), but")
          : fmt::format(
                "remembers word for word over {} (fine memory: copies with more than 99 % "
                "accuracy) and",
                in_words(fine));
  if (coarse.length == 0) {
    return fmt::format(
        "{} {} notices at no tested length by both more than chance and more than one point that "
        "it has seen a text before, so that it has no coarse memory.",
        name,
        verbatim);
  }
  return fmt::format(
      "{} {} notices that it has seen a text before over {} (coarse memory: by more than chance "
      "and "
      "at least one point better than unseen).",
      name,
      verbatim,
      in_words(tokens(coarse.text)));
}

}  // namespace

Copying copying(const nlohmann::json& summary) {
  const nlohmann::json::json_pointer key("/metrics/copies");
  if (!summary.contains(key)) return Copying::kYes;
  if (bool_at(summary, "/metrics/copies", false)) return Copying::kYes;
  // Results of before say false of too few repeats as well.
  const size_t repeats = num_repeats(summary);
  const bool too_few = summary.at(key).is_null() || (repeats > 0 && repeats < kFewestRepeats);
  return too_few ? Copying::kTooFewRepeats : Copying::kNo;
}

CoarseLength published_coarse_length(const nlohmann::json& summary) {
  return length_at(summary, "coarse_length");
}

CoarseLength tested_coarse_length(const nlohmann::json& summary) {
  const CoarseLength tested = length_at(summary, "significant_length");
  return std::isnan(tested.length) ? published_coarse_length(summary) : tested;
}

std::string fine_memory(const nlohmann::json& summary) {
  return tokens(text_at(summary, "/metrics/fine_length/text"));
}

std::string coarse_memory(const nlohmann::json& summary) {
  const std::string published = tokens(published_coarse_length(summary).text);
  if (published.empty()) return "";
  switch (copying(summary)) {
    case Copying::kNo:
      return published + " (within noise)";
    case Copying::kTooFewRepeats:
      return published + " (too few repeats to tell)";
    case Copying::kYes:
      break;
  }
  const std::string tested = tokens(tested_coarse_length(summary).text);
  return tested == published ? published : fmt::format("{}; {} (within noise)", tested, published);
}

Claim claim(const nlohmann::json& summary, int64_t claimed) {
  const Copying copies = copying(summary);
  const bool is_tested = copies == Copying::kYes;
  const CoarseLength coarse =
      is_tested ? tested_coarse_length(summary) : published_coarse_length(summary);
  const bool exceeds = 2 * coarse.length > static_cast<double>(claimed);
  // Within noise too: few short lengths may not tell a perfect copier from chance.
  if (coarse.text.starts_with('>') && !exceeds) return Claim::kNotFarEnough;
  if (copies == Copying::kTooFewRepeats) return Claim::kTooFewRepeats;
  return is_tested && exceeds ? Claim::kConfirmed : Claim::kDenied;
}

std::string memory_sentence(const RunResults& run, int64_t tokens_to_copy, double tokens_per_s) {
  const nlohmann::json* summary = run.evaluation("forgetting_curve");
  if (!summary) return "";
  switch (copying(*summary)) {
    case Copying::kYes:
      return remembers_sentence(run.name, fine_memory(*summary), tested_coarse_length(*summary));
    case Copying::kTooFewRepeats:
      return fmt::format(
          "{}: too few repeats to tell copying from chance, so its memory length is not known; "
          "measure each length {} times or more (--forgetting_curve.repeats, default 10).",
          run.name,
          kFewestRepeats);
    case Copying::kNo:
      break;
  }
  return fmt::format(
             "{} has not learned to copy yet: at no length does its accuracy on a text that it has "
             "just seen differ from that on the same text unseen (paired t-test, Holm-corrected, "
             "5 %), so its memory length cannot be measured.",
             run.name) +
         copy_advice(tokens_to_copy, tokens_per_s);
}

std::string fine_memory(const RunResults& run) {
  const nlohmann::json* summary = run.evaluation("forgetting_curve");
  return summary ? fine_memory(*summary) : "";
}

std::string coarse_memory(const RunResults& run) {
  const nlohmann::json* summary = run.evaluation("forgetting_curve");
  return summary ? coarse_memory(*summary) : "";
}

std::string claimed_length(const RunResults& run) {
  const nlohmann::json* summary = run.evaluation("forgetting_curve");
  if (run.train_length() <= 0 || !summary) return "";
  const auto verdict = [&] {
    switch (claim(*summary, run.train_length())) {
      case Claim::kConfirmed:
        return "confirmed";
      case Claim::kTooFewRepeats:
        return "too few repeats to tell";
      case Claim::kNotFarEnough:
        return "not tested far enough";
      case Claim::kDenied:
        break;
    }
    return "not confirmed";
  };
  return fmt::format("{} tokens ({})", grouped(run.train_length()), verdict());
}

}  // namespace reynard::report
