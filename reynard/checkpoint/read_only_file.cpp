#include "reynard/checkpoint/read_only_file.h"

#include "reynard/tensor/error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace reynard::checkpoint {

ReadOnlyFile::ReadOnlyFile(std::filesystem::path path, std::string_view hint)
    : path_(std::move(path)) {
  const std::string ending = hint.empty() ? "" : fmt::format("; {}", hint);
  // Without O_NONBLOCK a fifo would be waited for.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail(fmt::format("cannot be opened: {}{}", std::strerror(errno), ending));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail("is not a file" + ending);
  }
  size_bytes_ = status.st_size;
}

ReadOnlyFile::~ReadOnlyFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, static_cast<std::size_t>(size_bytes_));
  ::close(descriptor_);
}

void ReadOnlyFile::fail(const std::string& what) const {
  throw Error(fmt::format("{}: {}", path_.string(), what));
}

void ReadOnlyFile::read(int64_t offset, void* data, std::size_t bytes) const {
  char* rest = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, rest, std::min<std::size_t>(bytes, 1 << 30), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0) fail("became shorter while it was read");
    rest += got;
    offset += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

char* ReadOnlyFile::mapped(bool read_ahead) const {
  const std::lock_guard lock(mutex_);
  if (mapping_ == nullptr) {
    const auto size = static_cast<std::size_t>(size_bytes_);
    void* const mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (mapping == MAP_FAILED) {
      fail(fmt::format("cannot be mapped into memory: {}", std::strerror(errno)));
    }
    if (read_ahead) ::madvise(mapping, size, MADV_WILLNEED);
    mapping_ = mapping;
  }
  return static_cast<char*>(mapping_);
}

void ReadOnlyFile::let_go(int64_t offset, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  if (mapping_ == nullptr || bytes == 0) return;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t first = offset / page * page;
  ::madvise(static_cast<char*>(mapping_) + first,
            static_cast<std::size_t>(offset + bytes - first),
            MADV_DONTNEED);
}

}  // namespace reynard::checkpoint
