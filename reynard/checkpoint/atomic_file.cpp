#include "reynard/checkpoint/atomic_file.h"

#include "reynard/checkpoint/lock.h"
#include "reynard/tensor/check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace reynard::checkpoint {

std::filesystem::path temporary_name(const std::filesystem::path& path, std::string_view suffix) {
  static std::atomic<uint64_t> count = 0;
  for (;;) {
    std::filesystem::path name = path.parent_path() / fmt::format("{}{}-{}.{}{}",
                                                                  kTemporaryPrefix,
                                                                  path.filename().string(),
                                                                  ::getpid(),
                                                                  count++,
                                                                  suffix);
    std::error_code absent;  // what is there is a leftover, or leads to a file of others
    if (!std::filesystem::exists(std::filesystem::symlink_status(name, absent))) return name;
  }
}

std::string write_error_text(const std::filesystem::path& path, int error_number) {
  std::string text = std::strerror(error_number);
  if (error_number == ENOSPC || error_number == EDQUOT) {
    std::error_code ignored;
    const auto space =
        std::filesystem::space(path.parent_path().empty() ? "." : path.parent_path(), ignored);
    text += fmt::format(" ({} MB free there); free some space or choose another folder",
                        ignored ? 0 : space.available >> 20);
  }
  return text;
}

void commit_file(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  const int descriptor = ::open(temporary.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  const bool done =
      descriptor >= 0 && ::fsync(descriptor) == 0 && ::rename(temporary.c_str(), path.c_str()) == 0;
  const int error_number = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!done) {
    ::unlink(temporary.c_str());
    throw Error(fmt::format(
        "{}: cannot be written: {}", path.string(), write_error_text(path, error_number)));
  }
  sync_folder(path.parent_path());
}

AtomicFile::AtomicFile(std::filesystem::path path, uint64_t expected_bytes)
    : path_(std::move(path)) {
  // Renaming would put a file in the place of a device such as /dev/null.
  std::error_code absent;
  const std::filesystem::file_status old = std::filesystem::status(path_, absent);
  if (std::filesystem::exists(old) && !std::filesystem::is_regular_file(old)) {
    throw Error(
        fmt::format("{}: is {}; expected a file or a name that is free",
                    path_.string(),
                    std::filesystem::is_directory(old) ? "a folder" : "not a regular file"));
  }
  while (!create()) {
  }
  if (expected_bytes > 0) {
    const int error_number = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(expected_bytes));
    // Other failures mean that the file system cannot reserve; writing will tell.
    if (error_number == ENOSPC || error_number == EFBIG || error_number == EDQUOT) {
      ::close(descriptor_);
      ::unlink(temporary_.c_str());
      fail(fmt::format("cannot be written ({} bytes)", expected_bytes), error_number);
    }
  }
}

bool AtomicFile::create() {
  temporary_ = temporary_name(path_);
  descriptor_ =
      ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor_ < 0 && errno != EEXIST) fail("cannot be created", errno);
  if (descriptor_ < 0) return false;
  // Locked, so that remove_leftovers() sees that somebody writes; it may have come before.
  struct stat created {};
  const bool is_ours = try_lock(descriptor_) != Lock::kBusy &&
                       ::fstat(descriptor_, &created) == 0 && created.st_nlink > 0;
  if (!is_ours) ::close(std::exchange(descriptor_, -1));
  return is_ours;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(std::string_view step, int error_number) const {
  throw Error(
      fmt::format("{}: {}: {}", path_.string(), step, write_error_text(path_, error_number)));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* rest = static_cast<const char*>(data);
  hash_.update(data, bytes);
  size_bytes_ += bytes;
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_, rest, std::min<std::size_t>(bytes, 1 << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("writing failed", errno);
    rest += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void AtomicFile::sync() {
  // The reservation may have been larger than what was written.
  if (::ftruncate(descriptor_, static_cast<off_t>(size_bytes_)) != 0)
    fail("resizing failed", errno);
  if (::fsync(descriptor_) != 0) fail("syncing failed", errno);
}

void AtomicFile::commit() {
  sync();
  // Locked until it has its name: what is closed first looks left behind. All bytes are synced.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming failed", errno);
  ::close(std::exchange(descriptor_, -1));
  sync_folder(path_.parent_path());
  sha256_ = hash_.hex();
}

void remove_leftovers(const std::filesystem::path& path) {
  const std::string prefix = fmt::format("{}{}-", kTemporaryPrefix, path.filename().string());
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code ignored, gone;
  std::filesystem::directory_iterator at(folder, ignored);
  for (; !ignored && at != std::filesystem::directory_iterator(); at.increment(ignored)) {
    const std::filesystem::directory_entry& entry = *at;
    const std::string name = entry.path().filename().string();
    const bool is_one = name.starts_with(prefix) &&
                        name.find_first_not_of("0123456789.", prefix.size()) == std::string::npos;
    const std::filesystem::file_type type = entry.symlink_status(gone).type();
    const bool is_folder = type == std::filesystem::file_type::directory;
    if (!is_one || !(is_folder || type == std::filesystem::file_type::regular)) continue;
    const int descriptor =
        ::open(entry.path().c_str(), (is_folder ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) continue;
    if (try_lock(descriptor) == Lock::kHeld) std::filesystem::remove_all(entry.path(), gone);
    ::close(descriptor);
  }
}

void write_atomically(const std::filesystem::path& path, std::string_view bytes) {
  remove_leftovers(path);
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path named = folder.empty() ? "." : folder;
  const int descriptor = ::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    throw Error(fmt::format("{}: cannot be opened: {}", named.string(), std::strerror(errno)));
  }
  const int synced = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  // Some network file systems cannot sync folders; the rename itself stands.
  if (synced != 0 && error_number != EINVAL) {
    throw Error(fmt::format("{}: syncing failed: {}", named.string(), std::strerror(error_number)));
  }
}

}  // namespace reynard::checkpoint
