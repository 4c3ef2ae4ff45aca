#pragma once
// Reads many files at once and hands out what they hold in the order of the files. Each reader may
// run ahead by a few blocks, and a few files may be open, so memory is bounded.

#include "reynard/data/text_reader.h"
#include "reynard/tokenizer/tokenizer.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace reynard::data {

// What happens next in the output.
struct Event {
  enum class Kind { kBegin, kTokens, kAnswer, kAnswerEnd, kEnd, kNotText, kFileDone };
  Kind kind = Kind::kFileDone;
  bool held_out = false;     // kBegin
  std::vector<int32_t> ids;  // kTokens
  int64_t num_bytes = 0;     // kEnd: of the document's text
  uint64_t hash[2] = {};     // kEnd: of the document's text and where its answers are
  std::string message;       // kNotText
};

class FilePipeline {
 public:
  // options: one per file. Throws reynard::Error when the threads cannot be started.
  FilePipeline(const std::vector<InputFile>& files,
               const std::vector<TextReaderOptions>& options,
               const tokenizer::Tokenizer& tokenizer,
               int64_t num_threads);
  ~FilePipeline();  // stops the readers
  FilePipeline(const FilePipeline&) = delete;
  FilePipeline& operator=(const FilePipeline&) = delete;

  // The next event of the current file; kFileDone moves on to the next file. Throws what the reader
  // of the file threw.
  Event next();
  int64_t done_bytes() const { return progress_; }

 private:
  struct FileQueue {
    std::deque<Event> events;
    std::exception_ptr error;
    bool done = false;
  };
  void stop();
  FileQueue& queue_of(size_t index) { return queues_[index % queues_.size()]; }
  void work();
  void read_file(size_t index, FileQueue& queue);
  void push(FileQueue& queue, Event event);

  const std::vector<InputFile>& files_;
  const std::vector<TextReaderOptions>& options_;
  const tokenizer::Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<FileQueue> queues_;  // of the files that are being read or wait for next(), in turn
  size_t next_to_read_ = 0;
  size_t current_ = 0;  // the file that next() is at
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> progress_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace reynard::data
