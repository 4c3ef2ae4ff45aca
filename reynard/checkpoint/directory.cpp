#include "reynard/checkpoint/directory.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/lock.h"
#include "reynard/checkpoint/safetensors_header.h"
#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

namespace reynard::checkpoint {

namespace fs = std::filesystem;

namespace {

// checksums.json of a folder with a handful of files; more is not ours.
constexpr uintmax_t kMaxChecksumsBytes = 1 << 20;

[[noreturn]] void fail(const fs::path& path, std::string_view step, int error_number) {
  throw Error(fmt::format("{}: {}: {}", path.string(), step, std::strerror(error_number)));
}

// Puts `made` in the place of `target`, which may exist. A process killed in between leaves either
// the old or the new folder under `target` wherever the file system can exchange names.
void put_in_place(const fs::path& made, const fs::path& target) {
  std::error_code leftover;  // has a temporary name, so remove_unfinished() finds it
  if (::rename(made.c_str(), target.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail(target, "renaming failed", errno);
  if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(target.parent_path());
    fs::remove_all(made, leftover);
    return;
  }
  const fs::path old = temporary_name(target);
  if (::rename(target.c_str(), old.c_str()) != 0) fail(target, "renaming failed", errno);
  if (::rename(made.c_str(), target.c_str()) != 0) {
    const int error_number = errno;
    ::rename(old.c_str(), target.c_str());
    fail(target, "renaming failed", error_number);
  }
  fs::remove_all(old, leftover);
}

}  // namespace

FolderWriter::FolderWriter(fs::path target) : target_(std::move(target)) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "model/" names "model"
  std::error_code error;
  if (!target_.parent_path().empty()) fs::create_directories(target_.parent_path(), error);
  if (error) fail(target_, "cannot be created", error.value());
  remove_leftovers(target_);
  // Never one that is there: where containers share a folder, another process may have our number.
  int made = 0;
  do {
    temporary_ = temporary_name(target_);
    made = ::mkdir(temporary_.c_str(), 0777);
  } while (made != 0 && errno == EEXIST);
  if (made != 0) fail(target_, "cannot be created", errno);
  try {
    lock_.emplace(temporary_);  // tells remove_unfinished() that somebody writes
  } catch (const Error&) {
    fs::remove_all(temporary_, error);
    throw;
  }
}

FolderWriter::~FolderWriter() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void FolderWriter::write(const std::string& name, std::string_view bytes) {
  AtomicFile file(temporary_ / name, bytes.size());
  file.write(bytes.data(), bytes.size());
  file.commit();
  digests_[name] = {.size_bytes = file.size_bytes(), .sha256 = file.sha256()};
}

void FolderWriter::write_tensors(const std::string& name,
                                 std::span<const NamedTensor> tensors,
                                 const std::map<std::string, std::string>& metadata) {
  const WrittenFile written = write_safetensors(temporary_ / name, tensors, metadata);
  digests_[name] = {.size_bytes = written.size_bytes, .sha256 = written.sha256};
}

void FolderWriter::commit() {
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [name, digest] : digests_) {
    files[name] = {{"bytes", digest.size_bytes}, {"sha256", digest.sha256}};
  }
  write_atomically(temporary_ / kChecksums, nlohmann::json{{"files", files}}.dump(1) + "\n");
  put_in_place(temporary_, target_);
  committed_ = true;
  lock_.reset();
  sync_folder(target_.parent_path());
}

bool has_checksums(const fs::path& folder) {
  return fs::is_regular_file(folder / kChecksums);
}

void verify_folder(const fs::path& folder) {
  const fs::path list = folder / kChecksums;
  const auto json = config::parse_json_text(config::read_text_file(list, kMaxChecksumsBytes));
  if (!json.is_object() || !json.contains("files") || !json["files"].is_object()) {
    throw Error(fmt::format("{}: is not JSON with an object \"files\"", list.string()));
  }
  // A run goes on from a checkpoint only where its checksums are there.
  const std::string remedy =
      json["files"].contains("trainer.json")
          ? "copy it again from where it is whole, or use the checkpoint before"
          : fmt::format("fetch it again, or if that is on purpose, remove {}", list.string());
  for (const auto& [name, digest] : json["files"].items()) {
    if (!digest.is_object() || !digest.contains("bytes") || !digest["bytes"].is_number_unsigned() ||
        !digest.contains("sha256") || !digest["sha256"].is_string() || !is_plain_name(name)) {
      throw Error(fmt::format("{}: entry {} is malformed", list.string(), json_quoted(name)));
    }
    const fs::path file = folder / name;
    std::error_code error;
    const auto size_bytes = fs::file_size(file, error);
    if (error) {
      throw Error(fmt::format("{}: is missing: {}; {}", file.string(), error.message(), remedy));
    }
    const auto expected = digest["bytes"].get<uint64_t>();
    if (size_bytes != expected) {
      throw Error(fmt::format("{}: has {}; {} were written; {}",
                              file.string(),
                              counted(size_bytes, "byte"),
                              expected,
                              remedy));
    }
    if (sha256_hex_of_file(file) != digest["sha256"].get<std::string>()) {
      throw Error(fmt::format(
          "{}: content differs from what was written (its SHA-256); {}", file.string(), remedy));
    }
  }
}

FolderLock::FolderLock(const fs::path& folder)
    : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail(folder, "cannot be opened", errno);
  if (try_lock(descriptor_) == Lock::kBusy) {
    ::close(descriptor_);
    throw Error(
        fmt::format("{}: another process is writing there; wait until it ends, or choose "
                    "another folder",
                    folder.string()));
  }
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

namespace {

bool is_in_use(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool is_locked = try_lock(descriptor) == Lock::kBusy;
  ::close(descriptor);
  return is_locked;
}

}  // namespace

void remove_unfinished(const fs::path& parent, std::string_view names) {
  const std::string prefix = fmt::format("{}{}", kTemporaryPrefix, names);
  std::error_code unreadable, gone;
  fs::directory_iterator at(parent, unreadable);
  for (; !unreadable && at != fs::directory_iterator(); at.increment(unreadable)) {
    const bool is_one = at->path().filename().string().starts_with(prefix);
    if (is_one && !is_in_use(at->path())) fs::remove_all(at->path(), gone);
  }
}

}  // namespace reynard::checkpoint
