#include "reynard/data/count_pieces.h"

#include "reynard/data/input_files.h"
#include "reynard/data/text_reader.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace reynard::data {

namespace {

using tokenizer::PieceCounts;
using tokenizer::SplitPattern;
using tokenizer::TokenFinder;

constexpr size_t kMaxWaiting = 8;             // blocks of text that wait for a counter
constexpr size_t kMaxRest = size_t{8} << 20;  // of text without an end of a word

// Threads that count the blocks of text that they are given.
class Counters {
 public:
  Counters(SplitPattern pattern, const TokenFinder& special, int64_t num_threads)
      : special_(special) {
    for (int64_t i = 0; i < num_threads; ++i) counts_.emplace_back(pattern);
    try {
      for (PieceCounts& counts : counts_) threads_.emplace_back([this, &counts] { work(counts); });
    } catch (const std::exception& error) {  // of the system, or out of memory
      const size_t started = threads_.size();
      finish();
      throw Error(
          fmt::format("--threads {}: only {} threads could be started ({}); give a smaller "
                      "number",
                      num_threads,
                      started,
                      error.what()));
    }
  }
  ~Counters() { finish(); }

  void give(std::string text) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.size() < kMaxWaiting; });
    waiting_.push_back(std::move(text));
    changed_.notify_all();
  }

  PieceCounts result() {
    finish();
    if (error_) std::rethrow_exception(error_);
    for (size_t i = 1; i < counts_.size(); ++i) counts_[0].add(counts_[i]);
    return std::move(counts_[0]);
  }

 private:
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void work(PieceCounts& counts) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return done_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::string text = std::move(waiting_.front());
      waiting_.pop_front();
      changed_.notify_all();
      lock.unlock();
      std::exception_ptr error;
      try {
        special_.split(text, [&](std::string_view part, int32_t id) {
          if (id < 0) counts.add(part);
        });
      } catch (...) {  // out of memory
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
    }
  }

  const TokenFinder& special_;
  std::deque<PieceCounts> counts_;  // one per thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> waiting_;
  bool done_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

// Cuts documents into blocks that end where pieces do and outside of special tokens.
class Blocks {
 public:
  Blocks(Counters& counters, const TokenFinder& special, size_t longest_special)
      : counters_(counters), special_(special), longest_special_(longest_special) {}

  void add(std::string_view text) {
    rest_ += text;
    // A special token around a place before this one is there up to its end.
    const size_t known = rest_.size() - std::min(rest_.size(), longest_special_);
    const bool word_ends_are_safe = special_.keeps_word_ends();
    size_t end = tokenizer::last_word_end(
        std::string_view(rest_).substr(0, word_ends_are_safe ? rest_.size() : known));
    const bool is_safe = end > 0 && word_ends_are_safe;
    if (end == 0 && rest_.size() > kMaxRest) {  // no letters of ours: cut between characters
      for (end = known; end > 0 && (rest_[end] & 0xc0) == 0x80; --end) {
      }
    }
    if (end > 0 && !is_safe) end = before_special(end);
    if (end == 0) return;
    std::string after = rest_.substr(end);
    rest_.resize(end);
    counters_.give(std::exchange(rest_, std::move(after)));
  }
  void end() {
    if (!rest_.empty()) counters_.give(std::exchange(rest_, {}));
  }

 private:
  // Where the special token begins that `place` is inside of; else `place`.
  size_t before_special(size_t place) const {
    size_t before = place;
    special_.split(rest_, [&](std::string_view part, int32_t id) {
      const auto begin = static_cast<size_t>(part.data() - rest_.data());
      if (id >= 0 && begin < place && place < begin + part.size()) before = begin;
    });
    return before;
  }

  Counters& counters_;
  const TokenFinder& special_;
  size_t longest_special_;
  std::string rest_;  // begins outside of special tokens
};

// Whether a file is text up to its end. It is read for that before it is counted: blocks that were
// counted cannot be taken back, and all of a file's would not fit into memory.
bool is_text(const InputFile& file,
             const TextReaderOptions& options,
             const std::atomic<bool>& stop) {
  DocumentSink nowhere;
  nowhere.begin = [](bool) {};
  nowhere.text = [](std::string_view) {};
  nowhere.end = [] {};
  std::atomic<int64_t> done = 0;
  try {
    read_documents(file, options, nowhere, done, stop);
  } catch (const NotText&) {
    return false;
  }
  return true;
}

}  // namespace

PieceCounts count_pieces(const CountOptions& options, const PrepareProgress& progress) {
  const std::vector<InputFile> files =
      find_input_files(options.inputs, options.patterns, options.output).files;
  int64_t total = 0;
  for (const InputFile& file : files) total += file.size;
  const auto machine = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  TokenFinder special;
  size_t longest_special = 1;
  for (const std::string& token : options.special_tokens) {
    special.add(token, {.content = token});
    longest_special = std::max(longest_special, token.size());
  }
  Counters counters(
      options.pattern, special, options.num_threads > 0 ? options.num_threads : machine);
  Blocks blocks(counters, special, longest_special);
  std::atomic<int64_t> done = 0;
  const std::atomic<bool> stop = false;
  DocumentSink sink;
  sink.begin = [](bool) {};
  sink.text = [&](std::string_view text) {
    blocks.add(text);
    if (progress) progress(done, total);
  };
  sink.end = [&] { blocks.end(); };
  TextReaderOptions reader;
  reader.field = text_field(options.field, files);
  for (const InputFile& file : files) {
    // What is wrong in a .jsonl file, or in one that was named, is an error.
    const bool may_be_left_out = file.from_folder && !file.is_jsonl();
    if (may_be_left_out && !is_text(file, reader, stop)) continue;
    read_documents(file, reader, sink, done, stop);
  }
  PieceCounts counts = counters.result();
  if (counts.num_pieces() == 0) {
    throw Error(fmt::format("{}: no text was found", options.inputs.front().string()));
  }
  return counts;
}

}  // namespace reynard::data
