// reynard generate MODEL PROMPT: writes text, token by token.

#include "cli/command.h"
#include "cli/message.h"
#include "cli/numbers.h"
#include "cli/progress_bar.h"
#include "cli/pruning_note.h"
#include "cli/repeatable.h"
#include "cli/sampling_options.h"
#include "cli/stop_signal.h"
#include "cli/text_model.h"
#include "reynard/generation/generator.h"
#include "reynard/generation/text_stream.h"
#include "reynard/serving/cache_json.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace reynard::cli {

namespace {

using generation::FinishReason;
using generation::Sequence;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct GenerateArguments {
  TextModelArguments model;
  SamplingArguments sampling;
  std::string prompt, file;
  std::vector<std::string> stop;
  int64_t num_texts = 1, best_of = 0, logprobs = -1;
  std::optional<int64_t> chunk_tokens;
  bool keep_all = false, stats = false, json = false;
};

constexpr const char* kGenerateFooter =
    "Examples:\n"
    "  reynard generate runs/fox \"def main(\"\n"
    "  reynard generate models/llama --file chapter.txt -t 0.8 --top-p 0.95 --seed 7\n"
    "  cat question.txt | reynard generate models/llama --stop '\\n\\n' --json\n"
    "  reynard generate models/fox \"Once\" -n 2 --best-of 8 -t 1\n"
    "  reynard generate models/fox -t 1 -- \"- a prompt that begins with -\"\n"
    "\n"
    "Text is written as it comes; Ctrl-C keeps what was written (exit code 130). Without a prompt "
    "it is read from standard input. \\n, \\t and \\\\ in --stop mean newline, tab and "
    "backslash.\n";

std::string read_all(std::istream& in) {
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string read_prompt(const GenerateArguments& arguments, bool given) {
  if (given && !arguments.file.empty()) {
    throw Error("generate: PROMPT and --file; expected one of them");
  }
  if (given) return arguments.prompt;
  if (arguments.file.empty()) return read_all(std::cin);
  if (std::filesystem::is_directory(arguments.file)) {
    throw Error(fmt::format("generate: {} is a folder; expected a text file", arguments.file));
  }
  std::ifstream in(arguments.file, std::ios::binary);
  if (!in) throw Error(fmt::format("generate: {} cannot be read", arguments.file));
  return read_all(in);
}

std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size();
    const char next = escaped ? text[i + 1] : '\0';
    if (next == 'n' || next == 't' || next == '\\') {
      out += next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

// One of the texts that are written beside each other.
struct Text {
  uint64_t seed;
  Sequence sequence;
  generation::TextStream stream;
  std::string text = {};
  std::size_t num_read = 0;  // tokens whose text is in the stream

  // Guessed ones may be written behind a stop string; they are none of it.
  std::span<const generation::ScoredToken> tokens() const {
    return std::span(sequence.written()).first(num_read);
  }
  double logprob() const {  // mean per token, its end among them
    double sum = 0;
    for (const auto& token : tokens()) sum += token.logprob;
    const bool has_end = sequence.end() && !stream.is_stopped();
    if (has_end) sum += sequence.end()->logprob;
    return sum / static_cast<double>(std::max<std::size_t>(1, num_read + (has_end ? 1 : 0)));
  }
  // The text that became certain since the last call.
  std::string advance() {
    std::string piece;
    while (num_read < sequence.written().size() && !stream.is_stopped()) {
      piece += stream.add(sequence.written()[num_read++].token);
    }
    if (stream.is_stopped()) sequence.finish(FinishReason::kStop);
    if (sequence.finished() != FinishReason::kNone) piece += stream.finish();
    text += piece;
    return piece;
  }
};

struct Timing {
  int64_t tokens = 0;
  double seconds = 0;
};
struct WritingTiming : Timing {
  int64_t steps = 0;  // passes of the model
};
struct Timings {
  Timing prompt;
  WritingTiming text;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Reads the prompt once; the texts share its pages. Ends before all is read at Ctrl-C.
Timing prefill(generation::Generator& generator, Sequence& prompt) {
  Timing timing;
  const auto begin = Clock::now();
  const std::atomic<bool>& stop = stop_flag();
  ProgressBar bar("reading the prompt");
  const int64_t total = prompt.num_unread();
  while (!prompt.is_prefilled() && !stop) {
    generator.prefill(prompt);
    bar.show(total - prompt.num_unread(), total);
  }
  timing.tokens = std::ssize(prompt.prompt());
  timing.seconds = seconds_since(begin);
  return timing;
}

// Returns when all texts are finished, or at Ctrl-C.
WritingTiming write(generation::Generator& generator, std::vector<Text>& texts, bool streams) {
  WritingTiming timing;
  const auto begin = Clock::now();
  const std::atomic<bool>& stop = stop_flag();
  while (!stop) {
    std::vector<Sequence*> unfinished;
    for (Text& text : texts) {
      if (text.sequence.finished() == FinishReason::kNone) unfinished.push_back(&text.sequence);
    }
    if (unfinished.empty()) break;
    generator.step(unfinished);
    ++timing.steps;
    for (Text& text : texts) {
      const std::string piece = text.advance();
      if (!streams || piece.empty()) continue;
      fmt::print("{}", piece);
      std::fflush(stdout);
    }
  }
  timing.seconds = seconds_since(begin);
  for (Text& text : texts) {
    const std::string rest = text.stream.finish();
    text.text += rest;
    if (streams) fmt::print("{}", rest);
    timing.tokens += std::ssize(text.tokens());
  }
  return timing;
}

// What stands behind the share of attention that eviction may have dropped.
const char* eviction_basis(const models::Decoder& decoder) {
  return decoder.measured_eviction() ? "heuristic" : "bound";
}

ordered_json cache_stats(const models::CacheUse& use, const models::Decoder& decoder) {
  ordered_json stats = {{"eviction", eviction_basis(decoder)}};
  stats.update(serving::cache_json(use));
  return stats;
}

void print_stats(const std::vector<Text>& texts,
                 const models::Decoder& decoder,
                 const Timings& timings) {
  const models::CacheUse use = texts[0].sequence.state().cache_use();
  print_message(
      "prompt   {}, {:.2f} s, {:.0f} tokens/s\n"
      "text     {}, {:.2f} s, {:.1f} tokens/s\n"
      "cache    {}, {} bytes kept, {} bytes saved\n",
      counted(timings.prompt.tokens, "token"),
      timings.prompt.seconds,
      static_cast<double>(timings.prompt.tokens) / timings.prompt.seconds,
      counted(timings.text.tokens, "token"),
      timings.text.seconds,
      static_cast<double>(timings.text.tokens) / timings.text.seconds,
      counted(texts[0].sequence.state().length(), "token"),
      use.bytes_kept(),
      use.bytes_saved());
  const double log_tolerance = decoder.config().attention.log_pruning_tolerance;
  print_message(
      "dropped  at most {:.2g} of any query's attention by eviction{}{}\n",
      std::exp(use.log_evicted_share),
      log_tolerance < 0 ? fmt::format(", {:.2g} with pruning", std::exp(log_tolerance)) : "",
      decoder.measured_eviction()
          ? " (heuristic: while no query or key is longer than those before)"
          : "");
  print_message("pages kept of {} per key/value head:\n", use.pages_seen);
  for (std::size_t layer = 0; layer < use.pages_kept.size(); ++layer) {
    print_message("  layer {:<3}", layer + 1);
    for (const int64_t pages : use.pages_kept[layer]) print_message(" {:>5}", pages);
    print_message("\n");
  }
}

ordered_json text_json(const Text& text, const tokenizer::Tokenizer& tokenizer, bool logprobs) {
  ordered_json json = {{"text", text.text},
                       {"finish_reason",
                        text.sequence.finished() == FinishReason::kNone   ? "interrupted"
                        : text.sequence.finished() == FinishReason::kStop ? "stop"
                                                                          : "length"}};
  ordered_json tokens = ordered_json::array();
  for (const auto& written : text.tokens()) {
    if (!logprobs) {
      tokens.push_back(written.token);
      continue;
    }
    const auto entry = [&](const generation::TokenScore& score) {
      const std::string bytes = generation::text_of_token(tokenizer, score.token);
      return ordered_json{
          {"id", score.token}, {"text", tokenizer::displayable(bytes)}, {"logprob", score.logprob}};
    };
    ordered_json token = entry(written);
    for (const auto& other : written.top) token["top"].push_back(entry(other));
    tokens.push_back(token);
  }
  json["tokens"] = tokens;
  if (logprobs) json["mean_logprob"] = text.logprob();
  return json;
}

void print_texts(const std::vector<Text>& texts,
                 const TextModel& model,
                 const Timings& timings,
                 const GenerateArguments& arguments) {
  const auto shown = std::min(texts.size(), static_cast<std::size_t>(arguments.num_texts));
  for (std::size_t i = 0; i < shown; ++i) {
    if (!arguments.json) {
      fmt::print("{}==> text {} (seed {}, mean log-probability {:.4f})\n{}\n",
                 i > 0 ? "\n" : "",
                 i + 1,
                 texts[i].seed,
                 texts[i].logprob(),
                 texts[i].text);
      continue;
    }
    ordered_json line = text_json(texts[i], *model.tokenizer, arguments.logprobs >= 0);
    line["prompt_tokens"] = timings.prompt.tokens;
    line["seed"] = texts[i].seed;
    if (arguments.stats) {
      line["stats"] = {
          {"prompt_seconds", timings.prompt.seconds},
          {"seconds", timings.text.seconds},
          {"new_tokens", texts[i].tokens().size()},
          {"steps", timings.text.steps},
          {"guessed", texts[i].sequence.num_guessed()},
          {"accepted", texts[i].sequence.num_accepted()},
          {"cache", cache_stats(texts[i].sequence.state().cache_use(), model.decoder)}};
    }
    fmt::print("{}\n", line.dump());
  }
}

void check_arguments(const GenerateArguments& arguments) {
  using tensor::check_value;
  check_value(arguments.num_texts >= 1, "generate", "-n", arguments.num_texts, "at least 1");
  check_value(arguments.best_of == 0 || arguments.best_of >= arguments.num_texts,
              "generate",
              "--best-of",
              arguments.best_of,
              "at least -n");
  check_value(arguments.chunk_tokens.value_or(1) >= 1,
              "generate",
              "--chunk-tokens",
              arguments.chunk_tokens.value_or(1),
              "at least 1");
  if (arguments.logprobs >= 0 && !arguments.json) {
    throw Error("generate: --logprobs needs --json, which has a place for them");
  }
}

generation::SequenceOptions sequence_options(const GenerateArguments& arguments) {
  generation::SequenceOptions options = arguments.sampling.sequence_options();
  // Several texts are told apart, and ranked, by their log-probabilities.
  options.scores.logprobs =
      arguments.logprobs >= 0 || arguments.num_texts > 1 || arguments.best_of > 1;
  options.scores.num_top = std::max<int64_t>(0, arguments.logprobs);
  return options;
}

void run_generate(const GenerateArguments& arguments, bool prompt_given) {
  // Mistakes are told before a model is read.
  check_arguments(arguments);
  generation::SequenceOptions options = sequence_options(arguments);
  const std::string prompt = read_prompt(arguments, prompt_given);
  TextModel model = open_text_model(arguments.model);
  arguments.sampling.check_tokens(model.decoder.config().vocab_size);
  print_pruning_note(model.decoder.config());
  generation::Generator generator(model.decoder,
                                  {.chunk_tokens = arguments.chunk_tokens,
                                   .evict = !arguments.keep_all,
                                   .memories = model.memories});
  if (!arguments.sampling.ignore_eos) options.stop = model.stop;
  const std::vector<int64_t> ids = model.encode(prompt);
  Sequence first = generator.start(ids, options);
  std::vector<std::string> stop;
  for (const std::string& text : arguments.stop) stop.push_back(unescaped(text));
  Timings timings{.prompt = prefill(generator, first), .text = {}};
  const int64_t num_texts = std::max(arguments.num_texts, arguments.best_of);
  std::vector<Text> texts;
  for (int64_t i = 0; i < num_texts; ++i) {
    const uint64_t seed = arguments.sampling.options.seed + static_cast<uint64_t>(i);
    texts.push_back(
        {seed, first.fork(seed), generation::TextStream(*model.tokenizer, {.stop = stop}, ids)});
  }
  const bool streams = !arguments.json && num_texts == 1;
  if (first.is_prefilled()) timings.text = write(generator, texts, streams);
  const bool interrupted = stop_flag();
  if (arguments.best_of > 0) {
    std::ranges::stable_sort(
        texts, [](const Text& a, const Text& b) { return a.logprob() > b.logprob(); });
  }
  if (streams) {
    fmt::print("\n");
    std::fflush(stdout);  // before what goes to the standard error
  } else {
    print_texts(texts, model, timings, arguments);
  }
  if (arguments.stats && !arguments.json) print_stats(texts, model.decoder, timings);
  if (interrupted) throw ExitWith{kInterruptedExitCode};
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "Write text with a model");
  auto arguments = std::make_shared<GenerateArguments>();
  add_options(*command, arguments->model);
  auto* prompt = command->add_option("PROMPT", arguments->prompt, "text to go on from");
  command->add_option("--file", arguments->file, "read the prompt from this file");
  add_options(*command, arguments->sampling);
  make_repeatable(*command->add_option(
      "--stop", arguments->stop, "ends the text before this string; repeatable"));
  command->add_option("-n", arguments->num_texts, "texts to write, of seeds SEED, SEED + 1, ...")
      ->capture_default_str();
  command->add_option("--best-of",
                      arguments->best_of,
                      "write this many and show the N of the best mean log-probability");
  command
      ->add_option("--logprobs",
                   arguments->logprobs,
                   "with --json: log-probabilities, and those of this many most probable tokens")
      ->check(between(0, 1000));
  command->add_option(
      "--chunk-tokens",
      arguments->chunk_tokens,
      "prompt tokens read at once; by default 512, growing to 4096 in a long prompt");
  command->add_flag("--keep-all", arguments->keep_all, "never free forgotten cache pages");
  command->add_flag("--stats", arguments->stats, "speed, cache pages per head, bytes saved");
  command->add_flag("--json", arguments->json, "one JSON line per text");
  command->footer(kGenerateFooter);
  command->callback([arguments, prompt] { run_generate(*arguments, prompt->count() > 0); });
}

}  // namespace reynard::cli
