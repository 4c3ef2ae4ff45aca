#include "bench/serve.h"

#include "bench/read_only.h"
#include "reynard/models/decoder.h"
#include "reynard/serving/engine.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"
#include "reynard/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace reynard::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{100};
constexpr std::chrono::milliseconds kBeforeLate{200};  // of reading the long prompt
constexpr int64_t kShortPrompt = 32;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

models::Decoder byte_decoder(const ServeBench& options) {
  models::DecoderConfig config;
  config.vocab_size = tokenizer::ByteTokenizer::kVocabSize;
  config.hidden_size = options.width;
  config.num_layers = options.layers;
  config.attention.num_heads = std::max<int64_t>(1, options.width / 64);
  config.attention.qk_norm = models::QKNorm::kPerHead;
  config.attention.log_pruning_tolerance = -10;
  models::Decoder decoder(config, /*seed=*/1, tensor::choose_device(options.device));
  make_read_only(decoder, scalar_type(options.dtype));
  return decoder;
}

serving::Job job_of(int64_t prompt_tokens, int64_t max_tokens, int64_t which) {
  serving::Job job;
  job.prompts.emplace_back();
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    job.prompts[0].push_back((which * 31 + i * i) % 256);
  }
  job.options.max_tokens = max_tokens;
  return job;
}

// When each piece of a reply came, in milliseconds since `begin`, until it ends or is cancelled.
// Throws the error of one that fails.
std::vector<double> times_of(serving::Reply& reply, Clock::time_point begin) {
  std::vector<double> times;
  while (!reply.is_done() && (!reply.is_cancelled() || reply.has_failed())) {
    const auto piece = reply.next(kPatience);
    if (!piece) continue;
    if (!piece->error.empty()) throw Error("bench serve: " + piece->error);
    times.push_back(milliseconds_since(begin));
  }
  return times;
}

double tokens_per_second(serving::Engine& engine, const ServeBench& options, int64_t clients) {
  std::vector<std::shared_ptr<serving::Reply>> replies;
  const auto begin = Clock::now();
  for (int64_t c = 0; c < clients; ++c) {
    replies.push_back(engine.submit(job_of(kShortPrompt, options.tokens, c)));
  }
  for (const auto& reply : replies) times_of(*reply, begin);
  engine.wait_until_idle();
  return static_cast<double>(clients * options.tokens) / milliseconds_since(begin) * 1e3;
}

double percentile95(std::vector<double> values) {
  if (values.empty()) throw Error("bench serve: no gap between tokens was seen");
  std::ranges::sort(values);
  return values[(values.size() - 1) * 95 / 100];
}

// Gaps between tokens that ended inside [begin, end].
std::vector<double> gaps_of(const std::vector<double>& times, double begin, double end) {
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i] >= begin && times[i] <= end) gaps.push_back(times[i] - times[i - 1]);
  }
  return gaps;
}

using Replies = std::vector<std::shared_ptr<serving::Reply>>;

void cancel(const Replies& replies) {
  for (const auto& reply : replies) reply->cancel();
}

// Whatever ends its scope: nobody waits for ever for texts without an end.
struct CancelAtEnd {
  const Replies& replies;
  ~CancelAtEnd() { cancel(replies); }
};

// When each piece of a reply came; ready once the reply has ended.
using Reader = std::future<std::vector<double>>;
using Readers = std::vector<Reader>;

Reader read(const std::shared_ptr<serving::Reply>& reply, Clock::time_point begin) {
  return std::async(std::launch::async, [reply, begin] { return times_of(*reply, begin); });
}

// Until the clients are well under way. None of their texts may end before.
void wait_for_steps(const serving::Engine& engine, Readers& readers) {
  while (engine.counters().steps < 20) {
    for (auto& reader : readers) {
      if (reader.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) continue;
      reader.get();  // throws what ended it
      throw Error("bench serve: a text without an end has ended");
    }
  }
}

struct Gaps {
  double p95_ms = 0;
  // Since a client came while the long prompt was read: until the prompt was, and until the client
  // had its first token.
  double long_prompt_ms = 0, late_first_ms = 0;
};

// The short clients write until the long prompt has its first token.
Gaps measure_gaps(serving::Engine& engine, const ServeBench& options, bool with_long_prompt) {
  const int64_t endless = int64_t{1} << 30;
  const auto begin = Clock::now();
  Replies replies;
  Readers readers;
  Reader long_reader;
  const CancelAtEnd at_end{replies};
  for (int64_t c = 0; c < options.clients - 1; ++c) {
    const auto reply =
        engine.submit(job_of(kShortPrompt, with_long_prompt ? endless : options.tokens, c));
    replies.push_back(reply);
    readers.push_back(read(reply, begin));
  }
  Gaps gaps;
  double from = 0, to = 1e18;
  if (with_long_prompt) {
    wait_for_steps(engine, readers);
    from = milliseconds_since(begin);
    replies.push_back(engine.submit(job_of(options.long_prompt, 1, 99)));
    long_reader = read(replies.back(), begin);
    std::this_thread::sleep_for(kBeforeLate);
    const double joined = milliseconds_since(begin);
    const auto late = engine.submit(job_of(kShortPrompt, 1, 98));
    gaps.late_first_ms = times_of(*late, begin).front() - joined;
    to = long_reader.get().front();
    tensor::check_value(to > joined,
                        "bench serve",
                        "--long-prompt",
                        options.long_prompt,
                        "more tokens than are read in 0.2 s");
    gaps.long_prompt_ms = to - joined;
    cancel(replies);
  }
  std::vector<double> all;
  for (auto& reader : readers) {
    const std::vector<double> gaps_of_client = gaps_of(reader.get(), from, to);
    all.insert(all.end(), gaps_of_client.begin(), gaps_of_client.end());
  }
  engine.wait_until_idle();
  gaps.p95_ms = percentile95(std::move(all));
  return gaps;
}

Row row_of(const ServeBench& options,
           at::Device device,
           const std::string& name,
           const std::string& shape) {
  return {.name = name,
          .shape = fmt::format("L{} C{} {}", options.layers, options.width, shape),
          .dtype = options.dtype,
          .device = device_name(device),
          .peer = {},
          .unit = {}};
}

}  // namespace

Rows bench_serve(const ServeBench& options) {
  tensor::check_value(
      options.clients >= 2, "bench serve", "--clients", options.clients, "at least 2");
  tensor::check_value(options.tokens >= 8, "bench serve", "--tokens", options.tokens, "at least 8");
  models::Decoder decoder = byte_decoder(options);
  const tokenizer::ByteTokenizer tokenizer;
  Rows rows;
  if (is_named(options.names, "throughput")) {
    serving::Engine engine(decoder, tokenizer, {});
    tokens_per_second(engine, options, 2);  // unmeasured
    Row row =
        row_of(options, decoder.device(), "throughput", fmt::format("clients {}", options.clients));
    row.peer = "one_client";
    row.peer_value = tokens_per_second(engine, options, 1);
    row.ours = tokens_per_second(engine, options, options.clients);
    row.unit = "tokens/s";
    row.ratio = row.ours / row.peer_value;
    rows.push_back(row);
  }
  if (is_named(options.names, "gap")) {
    Gaps without, with;
    {
      serving::Engine engine(decoder, tokenizer, {});
      without = measure_gaps(engine, options, /*with_long_prompt=*/false);
    }
    {
      serving::Engine engine(decoder, tokenizer, {});
      with = measure_gaps(engine, options, /*with_long_prompt=*/true);
    }
    const std::string shape =
        fmt::format("clients {} prompt {}", options.clients - 1, options.long_prompt);
    Row gap = row_of(options, decoder.device(), "gap_p95", shape);
    gap.ours = with.p95_ms, gap.peer = "without_it", gap.peer_value = without.p95_ms;
    gap.unit = "ms", gap.ratio = without.p95_ms / with.p95_ms;
    Row first = row_of(options, decoder.device(), "first_token_late", shape);
    first.ours = with.late_first_ms, first.peer = "long_prompt_read";
    first.peer_value = with.long_prompt_ms, first.unit = "ms";
    first.ratio = with.long_prompt_ms / with.late_first_ms;
    rows.push_back(gap);
    rows.push_back(first);
  }
  return rows;
}

}  // namespace reynard::bench
