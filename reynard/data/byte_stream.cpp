#include "reynard/data/byte_stream.h"

#include "reynard/tensor/error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace reynard::data {

namespace {

constexpr size_t kBlockBytes = 256 << 10;

// A file read in blocks.
class RawFile {
 public:
  explicit RawFile(const std::filesystem::path& path) : path_(path) {
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail(fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  ~RawFile() { close(descriptor_); }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  size_t read(std::span<char> out) {
    while (true) {
      const ssize_t got = ::read(descriptor_, out.data(), out.size());
      if (got >= 0) {
        position_ += got;
        return static_cast<size_t>(got);
      }
      if (errno != EINTR) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    }
  }
  int64_t position() const { return position_; }
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(fmt::format("{}: {}", path_.string(), what));
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t position_ = 0;
};

// Packed bytes that were read and not yet unpacked.
struct PackedInput {
  std::vector<char> block = std::vector<char>(kBlockBytes);
  std::span<char> left;
  // false: the file has ended.
  bool refill(RawFile& file) {
    if (left.empty()) left = std::span(block).first(file.read(block));
    return !left.empty();
  }
};

class PlainBytes {
 public:
  static size_t read(RawFile& file, std::span<char> out) { return file.read(out); }
};

// gzip, also several members one after the other, with zeros behind each as tapes have them.
class GzipBytes {
 public:
  GzipBytes() {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw Error("gzip: out of memory");
  }
  ~GzipBytes() { inflateEnd(&stream_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  size_t read(RawFile& file, std::span<char> out) {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out == out.size()) {
      // A full output block may have left bytes inside the decoder: ask it before the file.
      if (!flushing_ && !input_.refill(file)) {
        if (!behind_member_) file.fail("the gzip file is cut short");
        return 0;
      }
      if (behind_member_) {
        while (!input_.left.empty() && input_.left.front() == 0) {
          input_.left = input_.left.subspan(1);
        }
        if (input_.left.empty()) continue;
      }
      behind_member_ = false;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.left.data());
      stream_.avail_in = static_cast<uInt>(input_.left.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      input_.left = input_.left.last(stream_.avail_in);
      if (result == Z_STREAM_END) {
        behind_member_ = true;
        inflateReset(&stream_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        file.fail(fmt::format("is not valid gzip at byte {}: {}",
                              file.position() - static_cast<int64_t>(input_.left.size()),
                              stream_.msg ? stream_.msg : "damaged"));
      }
      flushing_ = !behind_member_ && stream_.avail_out == 0;
    }
    return out.size() - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  PackedInput input_;
  bool behind_member_ = false;  // and before the next, if there is one
  bool flushing_ = false;
};

// Zstandard, also several frames one after the other.
class ZstdBytes {
 public:
  ZstdBytes() : stream_(ZSTD_createDStream()) {
    if (!stream_) throw Error("zstd: out of memory");
  }
  ~ZstdBytes() { ZSTD_freeDStream(stream_); }
  ZstdBytes(const ZstdBytes&) = delete;
  ZstdBytes& operator=(const ZstdBytes&) = delete;

  size_t read(RawFile& file, std::span<char> out) {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0) {
      // A full output block may have left bytes inside the decoder: ask it before the file.
      if (!flushing_ && !input_.refill(file)) {
        if (inside_frame_ || file.position() == 0) file.fail("the zstd file is cut short");
        return 0;
      }
      ZSTD_inBuffer from{input_.left.data(), input_.left.size(), 0};
      const size_t result = ZSTD_decompressStream(stream_, &to, &from);
      if (ZSTD_isError(result)) {
        file.fail(fmt::format("is not valid zstd at byte {}: {}",
                              file.position() - static_cast<int64_t>(input_.left.size()),
                              ZSTD_getErrorName(result)));
      }
      input_.left = input_.left.subspan(from.pos);
      flushing_ = result != 0 && to.pos == to.size;
      inside_frame_ = result != 0;
    }
    return to.pos;
  }

 private:
  ZSTD_DStream* stream_;
  PackedInput input_;
  bool inside_frame_ = false;
  bool flushing_ = false;
};

}  // namespace

struct ByteStream::State {
  explicit State(const std::filesystem::path& path) : file(path) {
    if (path.extension() == ".gz") bytes.emplace<GzipBytes>();
    if (path.extension() == ".zst") bytes.emplace<ZstdBytes>();
  }
  RawFile file;
  std::variant<PlainBytes, GzipBytes, ZstdBytes> bytes;
};

ByteStream::ByteStream(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
ByteStream::~ByteStream() = default;

size_t ByteStream::read(std::span<char> out) {
  return std::visit([&](auto& bytes) { return bytes.read(state_->file, out); }, state_->bytes);
}

int64_t ByteStream::packed_position() const {
  return state_->file.position();
}

}  // namespace reynard::data
