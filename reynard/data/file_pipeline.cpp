#include "reynard/data/file_pipeline.h"

#include "reynard/data/random.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

namespace reynard::data {

namespace {

constexpr size_t kUnseen = 16;    // bytes at the end of a text whose safety depends on what follows
constexpr size_t kMaxEvents = 6;  // a reader is at most this far ahead; a block is up to 1 MiB

// 128 bits over a text that arrives in pieces, and marks in it; the same however it is cut.
class TextHash {
 public:
  void add(std::string_view piece) {
    while (!piece.empty()) {
      const size_t n = std::min(piece.size(), sizeof word_ - filled_);
      std::memcpy(reinterpret_cast<char*>(&word_) + filled_, piece.data(), n);
      piece.remove_prefix(n);
      filled_ += n;
      if (filled_ == sizeof word_) mix_in();
    }
  }
  // Something that lies between two characters of the text.
  void mark(int64_t position) {
    mix_in();
    word_ = static_cast<uint64_t>(position);
    mix_in();
  }
  std::pair<uint64_t, uint64_t> finish(int64_t num_bytes) {
    mix_in();
    return {mix(low_ ^ static_cast<uint64_t>(num_bytes)), mix(high_)};
  }

 private:
  void mix_in() {
    low_ = mix(low_ ^ word_);
    high_ = mix(high_ + word_ * 0x9e3779b97f4a7c15U);
    word_ = 0;
    filled_ = 0;
  }
  uint64_t low_ = 1;
  uint64_t high_ = 2;
  uint64_t word_ = 0;
  size_t filled_ = 0;
};

// Makes events of documents whose text arrives in pieces.
class DocumentEvents {
 public:
  DocumentEvents(const tokenizer::Tokenizer& tokenizer, std::function<void(Event)> push)
      : tokenizer_(tokenizer), push_(std::move(push)) {}

  void begin(bool held_out) {
    hash_ = {};
    num_bytes_ = 0;
    continues_ = false;
    Event event;
    event.kind = Event::Kind::kBegin;
    event.held_out = held_out;
    push_(std::move(event));
  }

  void add(std::string_view piece) {
    hash_.add(piece);
    num_bytes_ += static_cast<int64_t>(piece.size());
    if (rest_.empty() && tokenizer_.safe_prefix(piece) == piece.size()) return push_tokens(piece);
    // Where there was no safe place before, there is none now, but for the last characters.
    const size_t seen = rest_.size() - std::min(rest_.size(), kUnseen);
    rest_ += piece;
    const size_t safe = tokenizer_.safe_prefix(std::string_view(rest_).substr(seen));
    if (safe == 0) return;
    push_tokens(std::string_view(rest_).substr(0, seen + safe));
    rest_.erase(0, seen + safe);
  }

  void mark_answer(bool begins) {
    push_rest();
    hash_.mark(num_bytes_);
    Event event;
    event.kind = begins ? Event::Kind::kAnswer : Event::Kind::kAnswerEnd;
    push_(std::move(event));
  }

  void end() {
    push_rest();
    Event event;
    event.kind = Event::Kind::kEnd;
    event.num_bytes = num_bytes_;
    std::tie(event.hash[0], event.hash[1]) = hash_.finish(num_bytes_);
    push_(std::move(event));
  }

 private:
  void push_tokens(std::string_view text) {
    if (text.empty()) return;
    Event event;
    event.kind = Event::Kind::kTokens;
    event.ids = tokenizer_.encode(text, {.continues = continues_});
    continues_ = true;
    if (!event.ids.empty()) push_(std::move(event));
  }
  void push_rest() {
    push_tokens(rest_);
    rest_.clear();
  }

  const tokenizer::Tokenizer& tokenizer_;
  std::function<void(Event)> push_;
  TextHash hash_;
  int64_t num_bytes_ = 0;
  std::string rest_;        // text whose tokens depend on what follows
  bool continues_ = false;  // text of this document was encoded before
};

}  // namespace

FilePipeline::FilePipeline(const std::vector<InputFile>& files,
                           const std::vector<TextReaderOptions>& options,
                           const tokenizer::Tokenizer& tokenizer,
                           int64_t num_threads)
    : files_(files), options_(options), tokenizer_(tokenizer) {
  const auto threads = std::min(static_cast<size_t>(num_threads), files.size());
  // Whatever a thread does outside of a try block must not allocate.
  queues_.resize(2 * threads);
  try {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::exception& error) {  // of the system, or out of memory
    stop();
    throw Error(
        fmt::format("prepare: --threads {}: only {} of {} threads could be started ({}); "
                    "give a smaller number",
                    num_threads,
                    threads_.size(),
                    threads,
                    error.what()));
  }
}

FilePipeline::~FilePipeline() {
  stop();
}

void FilePipeline::stop() {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void FilePipeline::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return stop_ || next_to_read_ >= files_.size() || next_to_read_ < current_ + queues_.size();
    });
    if (stop_ || next_to_read_ >= files_.size()) return;
    const size_t index = next_to_read_++;
    FileQueue& queue = queue_of(index);
    lock.unlock();
    std::exception_ptr error;
    try {
      read_file(index, queue);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    queue.error = error;
    queue.done = true;
    changed_.notify_all();
  }
}

void FilePipeline::push(FileQueue& queue, Event event) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || queue.events.size() < kMaxEvents; });
  queue.events.push_back(std::move(event));
  changed_.notify_all();
}

void FilePipeline::read_file(size_t index, FileQueue& queue) {
  const auto push_event = [&](Event event) { push(queue, std::move(event)); };
  DocumentEvents document(tokenizer_, push_event);
  const DocumentSink sink{
      .begin = [&](bool held_out) { document.begin(held_out); },
      .text = [&](std::string_view piece) { document.add(piece); },
      .answer = [&](bool begins) { document.mark_answer(begins); },
      .end = [&] { document.end(); },
  };
  try {
    read_documents(files_[index], options_[index], sink, progress_, stop_);
  } catch (const NotText& not_text) {
    // Only a file that nobody named may be left out; not one whose beginning is in train.tokens.
    if (!files_[index].from_folder || options_[index].held_out_from_byte > 0) throw;
    Event event;
    event.kind = Event::Kind::kNotText;
    event.message = not_text.what();
    push_event(std::move(event));
  }
}

Event FilePipeline::next() {
  std::unique_lock lock(mutex_);
  FileQueue& queue = queue_of(current_);
  changed_.wait(lock, [&] { return queue.done || !queue.events.empty(); });
  Event event;
  if (!queue.events.empty()) {
    event = std::move(queue.events.front());
    queue.events.pop_front();
  } else if (queue.error) {
    std::rethrow_exception(queue.error);
  } else {
    queue = {};
    ++current_;
  }
  changed_.notify_all();
  return event;
}

}  // namespace reynard::data
