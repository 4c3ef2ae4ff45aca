#include "reynard/data/token_file_writer.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/lock.h"
#include "reynard/data/random.h"
#include "reynard/tensor/error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace reynard::data {

namespace {

constexpr size_t kBufferBytes = 1 << 20;

void write_at(int descriptor,
              const std::filesystem::path& path,
              const char* data,
              size_t size,
              int64_t offset) {
  while (size > 0) {
    const ssize_t done = pwrite(descriptor, data, size, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const int reason = errno;
      throw Error(fmt::format(
          "{}: cannot be written: {}", path.string(), checkpoint::write_error_text(path, reason)));
    }
    data += done;
    size -= static_cast<size_t>(done);
    offset += done;
  }
}

bool is_file_at(int descriptor, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::filesystem::path partial_name(std::filesystem::path path) {
  path += ".partial";
  return path;
}

// np.roll by a random shift: what moves past the end comes in again at the front.
template <class Id>
void roll(Id* text, int64_t size, uint64_t bits) {
  const int64_t shift = below(bits, size);
  std::rotate(text, text + (size - shift) % size, text + size);
}

}  // namespace

void remove_partial(const std::filesystem::path& path) {
  const std::filesystem::path partial = partial_name(path);
  const int descriptor = open(partial.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  if (checkpoint::try_lock(descriptor) == checkpoint::Lock::kHeld &&
      is_file_at(descriptor, partial)) {
    unlink(partial.c_str());
  }
  close(descriptor);
}

void TokenFileWriter::Output::write(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  buffer.insert(buffer.end(), bytes, bytes + size);
  if (buffer.size() >= kBufferBytes) flush();
}

void TokenFileWriter::Output::flush() {
  write_at(descriptor, path, buffer.data(), buffer.size(), buffer_begin);
  buffer_begin += static_cast<int64_t>(buffer.size());
  buffer.clear();
}

void TokenFileWriter::fail(const char* action) const {
  const int reason = errno;
  throw Error(fmt::format("{}: cannot be {}: {}",
                          partial_.string(),
                          action,
                          checkpoint::write_error_text(partial_, reason)));
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path,
                                 const TokenFileWriterOptions& options)
    : path_(path), partial_(partial_name(path)), options_(options) {
  header_.tokenizer = options.tokenizer;
  header_.vocab_size = options.vocab_size;
  header_.bos = options.bos;
  header_.eos = options.eos;
  header_.roll_seed = options.roll_seed;
  tokens_.path = partial_;
  tokens_.buffer_begin = kTokenFileHeaderBytes;
  open_partial();
  open_unnamed(ends_, ".ends.partial");
  open_unnamed(answers_, ".answers.partial");
  if (ends_.descriptor < 0 || answers_.descriptor < 0 || ftruncate(tokens_.descriptor, 0) != 0) {
    const int reason = errno;
    unlink(partial_.c_str());
    close(tokens_.descriptor);
    if (ends_.descriptor >= 0) close(ends_.descriptor);
    if (answers_.descriptor >= 0) close(answers_.descriptor);
    errno = reason;
    fail("made");
  }
}

void TokenFileWriter::open_partial() {
  // What was opened may get its final name, or none, before it is locked: then again.
  do {
    if (tokens_.descriptor >= 0) close(tokens_.descriptor);
    tokens_.descriptor = open(partial_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (tokens_.descriptor < 0) fail("made");
    if (checkpoint::try_lock(tokens_.descriptor) == checkpoint::Lock::kBusy) {
      close(tokens_.descriptor);
      throw Error(fmt::format("{}: is being written by another process", partial_.string()));
    }
  } while (!is_file_at(tokens_.descriptor, partial_));
}

void TokenFileWriter::open_unnamed(Output& output, const char* suffix) {
  output.path = path_;
  output.path += suffix;
  output.descriptor =
      open(output.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (output.descriptor >= 0) unlink(output.path.c_str());
}

TokenFileWriter::~TokenFileWriter() {
  if (!renamed_) unlink(partial_.c_str());
  close(tokens_.descriptor);
  close(ends_.descriptor);
  close(answers_.descriptor);
}

void TokenFileWriter::put(int64_t id) {
  if (token_bytes(options_.vocab_size) == 2) {
    const auto narrow = static_cast<uint16_t>(id);
    tokens_.write(&narrow, sizeof narrow);
  } else {
    const auto wide = static_cast<uint32_t>(id);
    tokens_.write(&wide, sizeof wide);
  }
  ++end_;
}

void TokenFileWriter::begin_document() {
  drop_document();
  put(options_.bos);
}

void TokenFileWriter::append(std::span<const int32_t> ids) {
  if (token_bytes(options_.vocab_size) == 2) {
    const std::vector<uint16_t> narrow(ids.begin(), ids.end());
    tokens_.write(narrow.data(), narrow.size() * sizeof(uint16_t));
  } else {
    tokens_.write(ids.data(), ids.size() * sizeof(int32_t));
  }
  end_ += static_cast<int64_t>(ids.size());
}

void TokenFileWriter::begin_answer() {
  ranges_.push_back(end_);
}

void TokenFileWriter::end_answer() {
  put(options_.eos);
  ranges_.push_back(end_);
}

void TokenFileWriter::end_document(int64_t num_text_bytes) {
  if (ranges_.empty() || ranges_.back() != end_) put(options_.eos);
  ends_.write(&end_, sizeof end_);
  answers_.write(ranges_.data(), ranges_.size() * sizeof(int64_t));
  header_.num_answers += static_cast<int64_t>(ranges_.size() / 2);
  ranges_.clear();
  header_.num_tokens = end_;
  header_.num_text_bytes += num_text_bytes;
  ++header_.num_documents;
}

void TokenFileWriter::drop_document() {
  const int64_t keep =
      kTokenFileHeaderBytes + header_.num_tokens * token_bytes(options_.vocab_size);
  if (keep >= tokens_.buffer_begin) {
    tokens_.buffer.resize(static_cast<size_t>(keep - tokens_.buffer_begin));
  } else {
    tokens_.buffer.clear();
    tokens_.buffer_begin = keep;
  }
  end_ = header_.num_tokens;
  ranges_.clear();
}

void TokenFileWriter::append_all(Output& numbers) {
  numbers.flush();
  std::vector<char> block(kBufferBytes);
  for (int64_t offset = 0; offset < numbers.buffer_begin;) {
    const ssize_t got = pread(numbers.descriptor, block.data(), block.size(), offset);
    if (got <= 0) fail("completed");
    tokens_.write(block.data(), static_cast<size_t>(got));
    offset += got;
  }
  tokens_.flush();
}

void TokenFileWriter::roll_documents() {
  const int64_t width = token_bytes(options_.vocab_size);
  const auto size = static_cast<size_t>(tokens_.buffer_begin);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, tokens_.descriptor, 0);
  if (mapped == MAP_FAILED) fail("rolled");
  char* data = static_cast<char*>(mapped) + kTokenFileHeaderBytes;
  const auto* ends = reinterpret_cast<const int64_t*>(static_cast<char*>(mapped) + size -
                                                      static_cast<size_t>(header_.num_documents) *
                                                          sizeof(int64_t));
  int64_t begin = 0;
  for (int64_t d = 0; d < header_.num_documents; ++d) {
    const int64_t text = ends[d] - begin - 2;  // BOS and EOS stay
    if (text >= std::max<int64_t>(options_.roll_min_tokens, 1)) {
      const uint64_t bits =
          random_bits(static_cast<uint64_t>(*options_.roll_seed), 0, static_cast<uint64_t>(d));
      if (width == 2) {
        roll(reinterpret_cast<uint16_t*>(data) + begin + 1, text, bits);
      } else {
        roll(reinterpret_cast<uint32_t*>(data) + begin + 1, text, bits);
      }
    }
    begin = ends[d];
  }
  munmap(mapped, size);
}

void TokenFileWriter::finish() {
  drop_document();
  tokens_.flush();
  const int64_t end = tokens_.buffer_begin;
  const char zeros[8] = {};
  tokens_.write(zeros, static_cast<size_t>((end + 7) / 8 * 8 - end));
  append_all(ends_);
  append_all(answers_);
  if (ftruncate(tokens_.descriptor, tokens_.buffer_begin) != 0) fail("cut");
  if (options_.roll_seed) roll_documents();
  const std::string header = header_text(header_);
  write_at(tokens_.descriptor, partial_, header.data(), header.size(), 0);
  if (fsync(tokens_.descriptor) != 0) fail("synced");
}

void TokenFileWriter::commit() {
  if (rename(partial_.c_str(), path_.c_str()) != 0) fail("renamed");
  renamed_ = true;
  checkpoint::sync_folder(path_.parent_path());
}

}  // namespace reynard::data
