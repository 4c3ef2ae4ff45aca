#pragma once
// Continuous batching: one thread owns the model and advances all texts; any thread submits jobs
// and reads their replies. A job joins the running batch at the next step. Clients never hold the
// thread up: what they do not fetch waits in their reply.

#include "reynard/generation/generator.h"
#include "reynard/generation/text_stream.h"
#include "reynard/serving/chunk_cost.h"
#include "reynard/serving/prefix_store.h"
#include "reynard/serving/reply.h"
#include "reynard/tensor/error.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace reynard::serving {

struct EngineOptions {
  int64_t max_batch = 64;           // texts written at once
  int64_t max_waiting = 256;        // texts that wait while a batch is full; beyond: QueueFull
  int64_t max_cache_tokens = 0;     // keys and values held at once; 0: no limit
  int64_t max_prefix_tokens = 0;    // kept for prompts that begin alike, counted in the pages of
                                    // texts that free none; 0: none
  int64_t chunk_tokens = 512;       // of prompts per step while no text is being written ...
  int64_t least_chunk_tokens = 16;  // ... and at least while some are
  // What every text has in its memories before its prompt (models/saved_memory.h); null: nothing.
  std::shared_ptr<const models::StateSnapshot> memories = {};
};

struct Job {
  std::vector<std::vector<int64_t>> prompts;
  int64_t texts_per_prompt = 1;  // text i of prompt p has index p * texts_per_prompt + i
  generation::SequenceOptions options;
  // Per prompt, of its first text; those behind it have the next ones. Empty: that of options.
  std::vector<uint64_t> seeds = {};
  std::vector<std::string> stop;
  // Per prompt: of a character that it ends in the middle of and its texts go on with; empty: none.
  std::vector<std::string> begun = {};
  bool goes_on = false;    // the texts go on from their prompts, else they answer them
  bool cache_use = false;  // report it with the end of each text
};

// The queue has no room for the job now.
struct QueueFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A prompt and its texts are more than the cache holds: the job can never run.
struct JobTooLong : Error {
  using Error::Error;
};

// What the engine did since its start; read from any thread.
struct EngineCounters {
  // waiting + running: of those that have not ended, at most max_batch + max_waiting.
  std::atomic<int64_t> waiting{0}, running{0}, cache_pages{0};
  std::atomic<int64_t> finished{0}, cancelled{0}, failed{0};
  std::atomic<int64_t> prompt_tokens{0}, reused_tokens{0}, remembered_tokens{0}, new_tokens{0};
  std::atomic<int64_t> steps{0}, evicted_pages{0};
};

class Engine {
 public:
  // Decoder and tokenizer must outlive it; nobody else may use the decoder meanwhile.
  Engine(models::Decoder& decoder,
         const tokenizer::Tokenizer& tokenizer,
         const EngineOptions& options);
  ~Engine();  // cancels what runs
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws reynard::Error for a job that can never run, QueueFull for one that cannot now.
  std::shared_ptr<Reply> submit(Job job);
  // Returns once everything submitted has ended.
  void wait_until_idle();

  const EngineOptions& options() const { return options_; }
  const EngineCounters& counters() const { return counters_; }

 private:
  struct Text;  // one text of a job, from its turn to its end
  struct Waiting {
    std::shared_ptr<const Job> job;
    std::shared_ptr<Reply> reply;
    int64_t prompt;  // index into job->prompts
  };

  void run();
  bool wait_for_work();
  void admit();
  void forget_cancelled();
  std::atomic<int64_t>& counter_of(const Reply& ended);
  void start(const Waiting& waiting);
  void read_next();
  // Reads chunks of prompts and measures the time that a token takes; wanted: of all chunks.
  void read(std::span<const generation::PromptChunk> chunks, int64_t wanted);
  // Whether what was read of a prompt may serve others that begin alike.
  bool is_shareable(const Text& text);
  void reuse_prefix(Text& text);
  void keep_beginning(Text& text);
  // Keeps what the state has read. Nobody needs it: where memory runs out, the oldest that is kept
  // goes instead.
  void keep(const generation::Sequence& sequence);
  void begin_writing(Text& text);
  void write_next();
  // Runs a pass of the generator; texts whose logits are not finite end alone.
  void pass(const std::function<void()>& call);
  void deliver(Text& text);
  void remove_finished();
  void remove(std::list<Text>::iterator text);
  int64_t chunk_tokens() const;

  const tokenizer::Tokenizer& tokenizer_;
  EngineOptions options_;
  generation::Generator generator_;
  PrefixStore prefixes_;
  EngineCounters counters_;

  std::list<Text> texts_;  // owned by the engine's thread
  int64_t reserved_tokens_ = 0;
  bool first_in_turn_ = false;  // whether the prompt that came first is read before short ones
  double step_seconds_ = 0;     // running mean
  ChunkCost chunk_cost_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  bool stopping_ = false;
  bool idle_ = true;
  std::thread thread_;
};

}  // namespace reynard::serving
