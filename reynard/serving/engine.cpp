#include "reynard/serving/engine.h"

#include "reynard/attention/cache.h"
#include "reynard/models/decoder.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

namespace reynard::serving {

namespace {

using generation::FinishReason;
using generation::PromptChunk;
using generation::Sequence;
using Clock = std::chrono::steady_clock;

// A chunk of a prompt may hold running texts up by this many of their steps.
constexpr double kStepsPerChunk = 1.5;
constexpr double kMeanWeight = 0.2;  // of the newest value in a running mean
// Beginnings of a prompt that are kept grow by this part of them, so that a long one has few.
constexpr int64_t kBeginningShare = 8;

void update_mean(double& mean, double value) {
  mean = mean == 0 ? value : mean + kMeanWeight * (value - mean);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of keys and values, in all layers: each has pages of its own.
int64_t num_heads(const models::Decoder& decoder) {
  return decoder.config().num_layers * decoder.config().num_kv_heads();
}

std::string reason_of(const std::exception& error) {
  return tensor::is_out_of_memory(error) ? "the server is out of memory" : error.what();
}

// What is set aside of the cache: for a prompt until its last text ends, and for each text until it
// ends, which writes into pages of its own, from within the prompt's last one to within another.
int64_t tokens_of_prompt(const Job& job, int64_t prompt) {
  return std::ssize(job.prompts[prompt]) - attention::kPageTokens;
}
int64_t tokens_of_text(const Job& job) {
  return job.options.max_tokens + 2 * attention::kPageTokens;
}
int64_t tokens_needed(const Job& job, int64_t prompt) {
  return tokens_of_prompt(job, prompt) + job.texts_per_prompt * tokens_of_text(job);
}

generation::SequenceOptions options_of(const Job& job, int64_t prompt) {
  generation::SequenceOptions options = job.options;
  if (!job.seeds.empty()) options.sampler.seed = job.seeds[prompt];
  return options;
}

generation::TextStream stream_of(const tokenizer::Tokenizer& tokenizer,
                                 const Job& job,
                                 int64_t prompt) {
  return {tokenizer,
          {.stop = job.stop, .begun = job.begun.empty() ? "" : job.begun[prompt]},
          job.goes_on ? std::span<const int64_t>(job.prompts[prompt]) : std::span<const int64_t>()};
}

}  // namespace

struct Engine::Text {
  std::shared_ptr<const Job> job;
  std::shared_ptr<Reply> reply;
  int64_t index;
  Sequence sequence;
  generation::TextStream stream;
  int64_t reused_tokens = 0;  // by the first text of a prompt
  // Of the prompt: the longest beginning that was offered to others, and what it has in common with
  // theirs.
  int64_t kept_tokens = 0, common_tokens = 0;
  // Of the prompt: where its turns let it read to. A context that is read as a whole waits until it
  // is granted to its end (deficit round robin, Shreedhar and Varghese 1995).
  int64_t granted_end = 0;
  bool is_read = false;           // the prompt
  bool is_reported = false;       // what the first piece says was said
  std::size_t num_delivered = 0;  // tokens
  bool is_counted = true;         // as running: its end was not delivered

  int64_t prompt() const { return index / job->texts_per_prompt; }
  bool is_writing() const {
    return is_read && sequence.finished() == FinishReason::kNone && !reply->is_cancelled();
  }
  bool has_ended() const {
    return reply->is_cancelled() || (is_read && sequence.finished() != FinishReason::kNone);
  }
};

Engine::Engine(models::Decoder& decoder,
               const tokenizer::Tokenizer& tokenizer,
               const EngineOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      // What is set aside for texts and prefixes is counted in whole pages: no more are needed.
      generator_(
          decoder,
          {.chunk_tokens = options.chunk_tokens,
           .max_pages = options.max_cache_tokens / attention::kPageTokens * num_heads(decoder),
           .memories = options.memories}),
      prefixes_(options.max_prefix_tokens, num_heads(decoder)),
      chunk_cost_(std::min(options.least_chunk_tokens, options.chunk_tokens),
                  options.chunk_tokens) {
  // A GPU has no memory that is only promised: what does not fit shows before the first request.
  if (decoder.device().is_cuda()) generator_.pool()->reserve();
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Reply> Engine::submit(Job job) {
  const auto num_prompts = static_cast<int64_t>(job.prompts.size());
  const int64_t num_texts = num_prompts * job.texts_per_prompt;
  tensor::check_value(num_texts >= 1 && job.texts_per_prompt <= options_.max_batch,
                      "serve",
                      "n or best_of",
                      job.texts_per_prompt,
                      fmt::format("1 to {} (--max-batch)", options_.max_batch));
  tensor::check_value(
      num_texts <= options_.max_waiting,
      "serve",
      "prompts times n or best_of",
      num_texts,
      fmt::format("at most the {} that may wait (--max-waiting)", options_.max_waiting));
  for (const std::vector<int64_t>& prompt : job.prompts) {
    generation::check_sequence(generator_.decoder(), prompt, job.options);
  }
  for (int64_t prompt = 0; prompt < num_prompts; ++prompt) {
    const int64_t needed = tokens_needed(job, prompt);
    if (options_.max_cache_tokens == 0 || needed <= options_.max_cache_tokens) continue;
    throw JobTooLong(
        fmt::format("serve: prompt and max_tokens{} together = {}; expected at most the cache's {} "
                    "tokens",
                    job.texts_per_prompt > 1 ? " for each of n or best_of texts" : "",
                    needed,
                    options_.max_cache_tokens));
  }
  const generation::TextStream checked_stop(tokenizer_, {.stop = job.stop});
  auto reply = std::make_shared<Reply>(num_texts);
  const auto shared = std::make_shared<const Job>(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    // What a batch has free could begin at once, and does not wait.
    if (counters_.waiting + num_texts - options_.max_waiting >
        options_.max_batch - counters_.running) {
      throw QueueFull(fmt::format("the queue is full ({} waiting); try again later",
                                  counted(counters_.waiting.load(), "text")));
    }
    for (int64_t prompt = 0; prompt < num_prompts; ++prompt) {
      waiting_.push_back({shared, reply, prompt});
    }
    counters_.waiting += num_texts;
    idle_ = false;
  }
  changed_.notify_all();
  return reply;
}

void Engine::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return idle_; });
}

bool Engine::wait_for_work() {
  std::unique_lock lock(mutex_);
  if (texts_.empty() && waiting_.empty()) {
    idle_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
  }
  return !stopping_;
}

void Engine::run() {
  while (wait_for_work()) {
    try {
      admit();
      write_next();
      read_next();
      remove_finished();
    } catch (const std::exception& error) {
      // Nobody can say whose state is whole: all texts of the batch end.
      for (const Text& text : texts_) text.reply->fail(reason_of(error));
    }
    counters_.cache_pages = generator_.pool()->pages_in_use();
    counters_.evicted_pages = generator_.num_evicted();
    counters_.remembered_tokens = generator_.num_remembered();
  }
  constexpr const char* kStopping = "the server is stopping";
  for (const Text& text : texts_) text.reply->fail(kStopping);
  const std::lock_guard lock(mutex_);
  for (const Waiting& waiting : waiting_) waiting.reply->fail(kStopping);
}

void Engine::pass(const std::function<void()>& call) {
  try {
    call();
  } catch (const generation::FailedTexts& failed) {
    for (const Text& text : texts_) {
      for (const auto& [sequence, reason] : failed.texts) {
        if (sequence == &text.sequence) text.reply->fail(reason);
      }
    }
  }
}

void Engine::admit() {
  while (true) {
    Waiting next;
    {
      const std::lock_guard lock(mutex_);
      forget_cancelled();
      if (waiting_.empty()) return;
      next = waiting_.front();
      const int64_t num_texts = next.job->texts_per_prompt;
      if (counters_.running + num_texts > options_.max_batch) return;
      const int64_t needed = tokens_needed(*next.job, next.prompt);
      if (const int64_t most = options_.max_cache_tokens; most > 0) {
        const int64_t left = most - reserved_tokens_ - needed;
        if (left < 0) return;  // for other texts to end, not for prefixes to go
        while (prefixes_.num_own_tokens() > left) prefixes_.forget_oldest();
      }
      waiting_.pop_front();
      counters_.waiting -= num_texts;
      counters_.running += num_texts;  // in one step, for submit()
    }
    try {
      start(next);
    } catch (const std::exception& error) {
      next.reply->fail(reason_of(error));
      counters_.failed += next.job->texts_per_prompt;
      counters_.running -= next.job->texts_per_prompt;
    }
  }
}

// Clients that went away while they waited leave their places to others.
void Engine::forget_cancelled() {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (!waiting.reply->is_cancelled()) return false;
    counters_.waiting -= waiting.job->texts_per_prompt;
    counter_of(*waiting.reply) += waiting.job->texts_per_prompt;
    return true;
  });
}

void Engine::start(const Waiting& waiting) {
  const Job& job = *waiting.job;
  const std::vector<int64_t>& prompt = job.prompts[waiting.prompt];
  Text text{.job = waiting.job,
            .reply = waiting.reply,
            .index = waiting.prompt * job.texts_per_prompt,
            .sequence = generator_.start(prompt, options_of(job, waiting.prompt)),
            .stream = stream_of(tokenizer_, job, waiting.prompt)};
  texts_.push_back(std::move(text));
  counters_.prompt_tokens += std::ssize(prompt);
  reserved_tokens_ += tokens_needed(job, waiting.prompt);
}

int64_t Engine::chunk_tokens() const {
  const bool is_writing = std::ranges::any_of(texts_, &Text::is_writing);
  if (!is_writing) return options_.chunk_tokens;
  return chunk_cost_.tokens_within(kStepsPerChunk * step_seconds_);
}

// A chunk of what is to be read: by turns for the prompts of which least is left, so that short
// ones do not wait for long ones, and for the one that came first, so that nobody waits for ever.
void Engine::read_next() {
  std::vector<Text*> reading;
  for (Text& text : texts_) {
    if (!text.is_read && !text.reply->is_cancelled()) reading.push_back(&text);
  }
  if (reading.empty()) return;
  first_in_turn_ = !first_in_turn_;
  std::ranges::stable_sort(
      reading.begin() + (first_in_turn_ ? 1 : 0), reading.end(), {}, [](Text* text) {
        return text->sequence.num_unread();
      });
  const int64_t wanted = chunk_tokens();
  std::vector<PromptChunk> chunks;
  int64_t left = wanted;
  for (auto text = reading.begin(); text != reading.end() && left > 0; ++text) {
    Sequence& sequence = (*text)->sequence;
    int64_t& granted_end = (*text)->granted_end;
    if (granted_end == 0) {
      reuse_prefix(**text);  // as late as possible: what others read and wrote meanwhile counts too
      granted_end = sequence.state().length();
    }
    const int64_t begin = sequence.state().length(), end = begin + sequence.num_unread();
    const int64_t granted = std::min(end - granted_end, left);
    granted_end += granted, left -= granted;
    const int64_t tokens = granted_end - begin;
    if (tokens >= generator_.least_chunk(sequence)) chunks.push_back({&sequence, tokens});
  }
  read(chunks, wanted);
  for (Text* text : reading) {
    if (text->reply->is_cancelled()) continue;
    keep_beginning(*text);
    if (text->sequence.is_prefilled()) begin_writing(*text);
  }
}

void Engine::read(std::span<const PromptChunk> chunks, int64_t wanted) {
  const auto num_unread = [&] {
    int64_t sum = 0;
    for (const PromptChunk& chunk : chunks) sum += chunk.sequence->num_unread();
    return sum;
  };
  const int64_t before = num_unread();
  const auto begin = Clock::now();
  pass([&] { generator_.prefill(chunks); });
  const int64_t tokens = before - num_unread();
  // Less than was to be read says little about the time that a token takes.
  if (tokens >= wanted) chunk_cost_.add(tokens, seconds_since(begin));
}

bool Engine::is_shareable(const Text& text) {
  return generator_.decoder().config().reads_as_a_beginning(std::ssize(text.sequence.prompt()));
}

void Engine::reuse_prefix(Text& text) {
  // Scores of a prompt need every token of it.
  if (text.job->options.prompt_scores.logprobs || !is_shareable(text)) return;
  auto [state, num_common] = prefixes_.find(text.sequence.prompt());
  text.common_tokens = num_common;
  if (!state) return;
  text.reused_tokens = text.kept_tokens = state->length();
  counters_.reused_tokens += text.reused_tokens;
  text.sequence.adopt(std::move(*state));
}

// Keeps what was read of a prompt for others that begin alike: where it has grown, where it parts
// from them, and at its end. Of models with a memory only finished texts are kept: each state would
// count the whole of it.
void Engine::keep_beginning(Text& text) {
  if (generator_.decoder().config().has_memory()) return;
  const int64_t length = text.sequence.state().length();
  const int64_t grown = std::max(attention::kPageTokens, text.kept_tokens / kBeginningShare);
  const bool branches = text.kept_tokens < text.common_tokens && text.common_tokens <= length;
  if (length < text.kept_tokens + grown && !branches && !text.sequence.is_prefilled()) return;
  keep(text.sequence);
  text.kept_tokens = length;
}

void Engine::keep(const Sequence& sequence) {
  try {
    std::vector<int64_t> tokens = sequence.prompt();
    for (const auto& written : sequence.written()) tokens.push_back(written.token);
    tokens.resize(sequence.state().length());
    prefixes_.add(tokens, sequence.state());
  } catch (const std::exception& error) {
    if (!tensor::is_out_of_memory(error)) throw;
    prefixes_.forget_oldest();
  }
}

void Engine::begin_writing(Text& text) {
  generator_.free_pages(text.sequence);  // once for all its texts
  const uint64_t seed = text.sequence.options().sampler.seed;
  std::list<Text> others;  // all of them or, where memory runs out, none
  for (int64_t i = 1; i < text.job->texts_per_prompt; ++i) {
    others.push_back({.job = text.job,
                      .reply = text.reply,
                      .index = text.index + i,
                      .sequence = text.sequence.fork(seed + static_cast<uint64_t>(i)),
                      .stream = stream_of(tokenizer_, *text.job, text.prompt()),
                      .is_read = true});
  }
  text.is_read = true;
  texts_.splice(texts_.end(), others);
  for (Text& each : texts_) {
    const bool is_of_prompt = each.reply == text.reply && each.prompt() == text.prompt();
    if (is_of_prompt && each.sequence.finished() != FinishReason::kNone) deliver(each);
  }
}

void Engine::write_next() {
  std::vector<Sequence*> sequences;
  for (Text& text : texts_) {
    if (text.is_writing()) sequences.push_back(&text.sequence);
  }
  if (sequences.empty()) return;
  const auto begin = Clock::now();
  pass([&] { generator_.step(sequences); });
  update_mean(step_seconds_, seconds_since(begin));
  ++counters_.steps;
  for (Text& text : texts_) {
    if (text.reply->is_cancelled()) continue;
    if (text.is_read && text.sequence.written().size() > text.num_delivered) {
      deliver(text);
    } else if (text.is_read && text.sequence.finished() != FinishReason::kNone) {
      deliver(text);  // it ended without another token
    }
  }
}

void Engine::deliver(Text& text) {
  Piece piece{.index = text.index};
  const auto& written = text.sequence.written();
  while (text.num_delivered < written.size() && !text.stream.is_stopped()) {
    piece.text += text.stream.add(written[text.num_delivered].token);
    piece.tokens.push_back(written[text.num_delivered++]);
  }
  counters_.new_tokens += std::ssize(piece.tokens);
  if (text.stream.is_stopped()) text.sequence.finish(FinishReason::kStop);
  piece.finished = text.sequence.finished();
  if (piece.finished != FinishReason::kNone) {
    piece.text += text.stream.finish();
    piece.end = text.sequence.end();
    if (text.job->cache_use) piece.cache = text.sequence.state().cache_use();
    text.is_counted = false;  // its client may ask for another at once
    --counters_.running;
  }
  if (!text.is_reported) {
    piece.prompt_scores = text.sequence.prompt_scores();
    piece.reused_tokens = text.reused_tokens;
    text.is_reported = true;
  }
  text.reply->add(std::move(piece));
}

std::atomic<int64_t>& Engine::counter_of(const Reply& ended) {
  if (ended.has_failed()) return counters_.failed;
  return ended.is_cancelled() ? counters_.cancelled : counters_.finished;
}

void Engine::remove_finished() {
  for (auto text = texts_.begin(); text != texts_.end();) {
    const auto next = std::next(text);
    if (text->has_ended()) remove(text);
    text = next;
  }
}

void Engine::remove(std::list<Text>::iterator text) {
  std::list<Text> removed;  // whatever fails below
  removed.splice(removed.end(), texts_, text);
  const Job& job = *text->job;
  const bool cancelled = text->reply->is_cancelled();
  // A prompt that was not read to its end stands for all its texts.
  const int64_t num_texts = text->is_read ? 1 : job.texts_per_prompt;
  counter_of(*text->reply) += num_texts;
  if (text->is_counted) counters_.running -= num_texts;
  reserved_tokens_ -= num_texts * tokens_of_text(job);
  const bool is_last = std::ranges::none_of(texts_, [&](const Text& other) {
    return other.reply == text->reply && other.prompt() == text->prompt();
  });
  if (is_last) reserved_tokens_ -= tokens_of_prompt(job, text->prompt());
  if (!cancelled && is_shareable(*text)) keep(text->sequence);
}

}  // namespace reynard::serving
