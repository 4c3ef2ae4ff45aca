#include "cli/sampling_options.h"

#include "cli/numbers.h"
#include "cli/repeatable.h"
#include "reynard/models/state.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <system_error>

namespace reynard::cli {

namespace {

generation::LogitBias parse_bias(const std::string& text) {
  const std::size_t sign = text.find('=');
  generation::LogitBias bias;
  if (sign != std::string::npos) {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const auto id = std::from_chars(begin, begin + sign, bias.token);
    const auto value = std::from_chars(begin + sign + 1, end, bias.bias);
    const bool whole = id.ec == std::errc() && id.ptr == begin + sign && value.ec == std::errc() &&
                       value.ptr == end;
    if (whole && !std::isnan(bias.bias)) return bias;
  }
  throw Error(fmt::format("--logit-bias {}; expected ID=VALUE, such as 42=-3.5", text));
}

}  // namespace

generation::SequenceOptions SamplingArguments::sequence_options() const {
  if (max_tokens < 1) {
    throw Error(fmt::format("-m {}; expected at least 1 token", max_tokens));
  }
  generation::SequenceOptions sequence{
      .max_tokens = max_tokens, .sampler = options, .lookup_tokens = lookup_tokens};
  for (const std::string& text : logit_bias) {
    sequence.sampler.logit_bias.push_back(parse_bias(text));
  }
  generation::check_options(sequence);
  return sequence;
}

void SamplingArguments::check_tokens(int64_t vocab_size) const {
  for (const std::string& text : logit_bias) {
    const int64_t token = parse_bias(text).token;
    if (token >= 0 && token < vocab_size) continue;
    throw Error(
        fmt::format("--logit-bias {}: the model has no token {}; expected an id from 0 to {}, of "
                    "those that `reynard tokenizer encode` writes",
                    text,
                    token,
                    vocab_size - 1));
  }
}

void add_options(CLI::App& command, SamplingArguments& arguments) {
  generation::SamplerOptions& options = arguments.options;
  command.add_option("-m,--max-tokens", arguments.max_tokens, "tokens to write at most")
      ->capture_default_str();
  command
      .add_option("-t,--temperature",
                  options.temperature,
                  "0: always the most probable token; 1: the model's distribution")
      ->check(at_least_zero())
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "choose from the K most probable tokens; 0: all")
      ->check(at_least_zero());
  command
      .add_option(
          "--top-p", options.top_p, "choose from the fewest tokens with this probability; 0: all")
      ->check(between(0, 1));
  command
      .add_option("--min-p",
                  options.min_p,
                  "choose from tokens with this share of the largest probability; 0: all")
      ->check(between(0, 1));
  command
      .add_option("--repetition-penalty",
                  options.repetition_penalty,
                  "divides logits of tokens of prompt and text; 1: off")
      ->check(above_zero());
  command.add_option("--presence-penalty",
                     options.presence_penalty,
                     "subtracted from logits of tokens of the text");
  command.add_option("--frequency-penalty",
                     options.frequency_penalty,
                     "subtracted once for each occurrence in the text");
  make_repeatable(*command.add_option(
      "--logit-bias", arguments.logit_bias, "ID=VALUE, added to a logit; repeatable"));
  command.add_option("--seed", options.seed, "same seed, same text")->capture_default_str();
  command
      .add_option("--lookup",
                  arguments.lookup_tokens,
                  "tokens guessed from earlier text and checked in one step; the same text up to "
                  "rounding, often sooner; 0: off")
      ->check(between(0, models::SequenceState::kCarryTokens - 1));
  command.add_flag("--ignore-eos", arguments.ignore_eos, "go on behind the end of the text");
}

}  // namespace reynard::cli
