#pragma once
// A file on disk that is only read. Copied from where a copy is made anyway: a file that becomes
// shorter is then an error. Mapped where it is read in place: such a file ends the process with
// SIGBUS.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

namespace reynard::checkpoint {

// Every function throws reynard::Error, naming the file.
class ReadOnlyFile {
 public:
  // Not for folders, pipes and devices. hint: what the message ends with.
  explicit ReadOnlyFile(std::filesystem::path path, std::string_view hint = {});
  ~ReadOnlyFile();
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }

  void read(int64_t offset, void* data, std::size_t bytes) const;
  // All of the file, for as long as this object lives; never to be written. read_ahead: the first
  // call has the system begin to read it. Its pages are no data of the process, whatever limits
  // that.
  char* mapped(bool read_ahead = false) const;
  // Takes the pages that hold these bytes out of the process, if they were mapped; those of the
  // ends too, which cost a neighbour a page fault.
  void let_go(int64_t offset, int64_t bytes) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable void* mapping_ = nullptr;
};

}  // namespace reynard::checkpoint
