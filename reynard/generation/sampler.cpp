#include "reynard/generation/sampler.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

namespace reynard::generation {

namespace {

void check_number(bool holds, std::string_view name, double value, std::string_view requirement) {
  tensor::check_value(holds, "sampler", name, fmt::format("{}", value), requirement);
}

struct Candidate {
  double logit;  // less the largest one, by the temperature
  int64_t token;
};

bool less_probable(const Candidate& a, const Candidate& b) {
  return a.logit < b.logit || (a.logit == b.logit && a.token > b.token);
}

// The most probable candidates, best first, without sorting the rest: all of them when no limit
// stops earlier.
std::vector<Candidate> most_probable(std::vector<Candidate> all, const SamplerOptions& options) {
  std::make_heap(all.begin(), all.end(), less_probable);
  const auto limit = options.top_k > 0 ? static_cast<std::size_t>(options.top_k) : all.size();
  std::vector<Candidate> kept;
  const auto pop = [&] {
    std::pop_heap(all.begin(), all.end(), less_probable);
    kept.push_back(all.back());
    all.pop_back();
  };
  if (options.top_k > 0) {
    while (!all.empty() && kept.size() < limit) pop();
    std::swap(all, kept);
    std::make_heap(all.begin(), all.end(), less_probable);
    kept.clear();
  }
  double total = 0, mass = 0;
  for (const Candidate& candidate : all) total += std::exp(candidate.logit);
  while (!all.empty()) {
    if (options.top_p > 0 && mass >= options.top_p * total) break;
    if (all.front().logit < std::log(options.min_p)) break;
    pop();
    mass += std::exp(kept.back().logit);
  }
  return kept;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  const auto is_finite = [](double x) { return std::isfinite(x); };
  check_number(options.temperature >= 0 && is_finite(options.temperature),
               "temperature",
               options.temperature,
               "a finite number >= 0, 0: greedy");
  tensor::check_value(options.top_k >= 0, "sampler", "top_k", options.top_k, ">= 0, 0: all tokens");
  check_number(options.top_p >= 0 && options.top_p <= 1, "top_p", options.top_p, "0 to 1, 0: all");
  check_number(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "0 to 1, 0: all");
  check_number(options.repetition_penalty > 0 && is_finite(options.repetition_penalty),
               "repetition_penalty",
               options.repetition_penalty,
               "> 0, 1: off");
  check_number(is_finite(options.presence_penalty),
               "presence_penalty",
               options.presence_penalty,
               "a number, 0: off");
  check_number(is_finite(options.frequency_penalty),
               "frequency_penalty",
               options.frequency_penalty,
               "a number, 0: off");
  std::unordered_map<int64_t, double> sums;
  for (const auto& [token, bias] : options.logit_bias) {
    check_number(!std::isnan(bias), "logit_bias", bias, "a number");
    tensor::check_value(!std::isnan(sums[token] += bias),
                        "sampler",
                        fmt::format("sum of logit_bias of token {}", token),
                        "inf - inf",
                        "a number");
  }
}

void Sampler::read_prompt(std::span<const int64_t> tokens) {
  if (options_.repetition_penalty != 1) seen_.insert(tokens.begin(), tokens.end());
}

void Sampler::penalize(std::vector<double>& logits) const {
  const auto at = [&](int64_t token) -> double& { return logits[static_cast<size_t>(token)]; };
  if (options_.repetition_penalty != 1) {
    for (const int64_t token : seen_) {
      double& logit = at(token);
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
  }
  for (const auto& [token, count] : written_) {
    at(token) -=
        options_.presence_penalty + options_.frequency_penalty * static_cast<double>(count);
  }
  const auto vocabulary = static_cast<int64_t>(logits.size());
  for (const LogitBias& entry : options_.logit_bias) {
    tensor::check_value(entry.token >= 0 && entry.token < vocabulary,
                        "sampler",
                        "logit_bias token",
                        entry.token,
                        fmt::format("0 to {}", vocabulary - 1));
    at(entry.token) += entry.bias;
  }
  const auto bad = std::ranges::find_if(logits, [](double logit) { return std::isnan(logit); });
  if (bad != logits.end()) {
    throw Error(
        fmt::format("sampler: the logit of token {} is inf - inf after the penalties and "
                    "logit_bias; expected a number",
                    bad - logits.begin()));
  }
}

int64_t Sampler::draw(const std::vector<double>& logits) {
  // Below the largest first: at temperatures near 0 the quotients alone would overflow.
  const double largest = *std::ranges::max_element(logits);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const double below = logits[id] == largest ? 0 : logits[id] - largest;
    candidates.push_back({below / options_.temperature, static_cast<int64_t>(id)});
  }
  const bool all = options_.top_k == 0 && options_.top_p == 0 && options_.min_p == 0;
  if (!all) candidates = most_probable(std::move(candidates), options_);
  double mass = 0;
  for (const Candidate& candidate : candidates) mass += std::exp(candidate.logit);
  // 53 random bits: std::uniform_real_distribution differs between libraries.
  double left = static_cast<double>(random_() >> 11) * 0x1.0p-53 * mass;
  int64_t chosen = candidates.front().token;
  for (const Candidate& candidate : candidates) {
    const double share = std::exp(candidate.logit);
    if (share == 0) continue;
    chosen = candidate.token;
    left -= share;
    if (left < 0) break;
  }
  return chosen;
}

int64_t Sampler::next(const at::Tensor& logits) {
  tensor::check_shape("sampler", "logits", logits, {{"V"}});
  tensor::check_value(logits.size(0) > 0, "sampler", "number of logits", logits.size(0), "> 0");
  const at::Tensor values = logits.to(at::kCPU, at::kDouble).contiguous();
  const auto* first = values.const_data_ptr<double>();
  std::vector<double> x(first, first + logits.size(0));
  const auto bad = std::ranges::find_if_not(x, [](double logit) { return std::isfinite(logit); });
  if (bad != x.end()) {
    throw Error(fmt::format(
        "sampler: the logit of token {} is {}; expected a finite number: weights or a memory that "
        "hold NaN or numbers that are too large give such",
        bad - x.begin(),
        *bad));
  }
  penalize(x);
  const int64_t token =
      options_.temperature == 0 ? std::max_element(x.begin(), x.end()) - x.begin() : draw(x);
  ++written_[token];
  if (options_.repetition_penalty != 1) seen_.insert(token);
  return token;
}

}  // namespace reynard::generation
