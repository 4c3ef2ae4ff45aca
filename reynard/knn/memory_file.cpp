#include "reynard/knn/memory_file.h"

#include "reynard/config/flat_header.h"
#include "reynard/config/json_file.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/div_up.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <string>

namespace reynard::knn {

static_assert(std::endian::native == std::endian::little, "memory files are little-endian");

namespace {

using Json = nlohmann::json;

constexpr config::FileKind kKind = {.format = "reynard-memory",
                                    .name = "memory file",
                                    .remedy = "make it anew with `reynard remember`"};
constexpr int64_t kVersion = 2;
constexpr int64_t kHeaderBytes = 4096;
constexpr int64_t kAlignment = 64;  // of sections: a cache line, and more than any element
constexpr int64_t kMaxNameBytes = 512, kMaxTextBytes = 64;
constexpr int64_t kDigestBytes = 64;  // SHA-256 in hex digits
constexpr int64_t kMaxHeads = 1 << 16, kMaxHeadDim = 1 << 16, kMaxRows = 1 << 24;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(fmt::format("{}: {}", path.string(), what));
}

int64_t aligned(int64_t bytes) {
  return tensor::div_up(bytes, kAlignment) * kAlignment;
}

int64_t element_bytes(at::ScalarType dtype) {
  return dtype == at::kFloat ? 4 : 2;
}

std::string_view dtype_text(at::ScalarType dtype) {
  return dtype == at::kFloat ? "float32" : "bfloat16";
}

std::string header_text(const MemoryOptions& options) {
  const nlohmann::ordered_json json{{"format", kKind.format},
                                    {"version", kVersion},
                                    {"model", options.of.model},
                                    {"layer", options.of.layer},
                                    {"num_heads", options.of.num_heads},
                                    {"head_dim", options.of.head_dim},
                                    {"dtype", dtype_text(options.of.dtype)},
                                    {"num_rows", options.num_rows},
                                    {"capacity", options.capacity},
                                    {"evict", options.evict},
                                    {"text", options.text}};
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception&) {
    throw Error("memory: the name of the model or of the text is not UTF-8");
  }
  TORCH_INTERNAL_ASSERT(std::ssize(text) < kHeaderBytes);  // names are escaped to at most 6 times
  text.resize(kHeaderBytes - 1, ' ');                      // JSON allows blanks at its end
  text += '\n';
  return text;
}

MemoryOptions parse_header(std::string_view bytes, const std::filesystem::path& path) {
  const config::FlatHeader json(bytes, path, kKind);
  if (const int64_t version = json.integer("version", 0, kMaxEntries); version != kVersion) {
    json.fail(fmt::format("memory file of version {}; this program reads version {}: {}",
                          version,
                          kVersion,
                          kKind.remedy));
  }
  MemoryOptions options;
  options.of.model = json.text("model");
  options.of.layer = json.integer("layer", 0, kMaxEntries);
  options.of.num_heads = json.integer("num_heads", 1, kMaxHeads);
  options.of.head_dim = json.integer("head_dim", 1, kMaxHeadDim);
  const std::string dtype = json.text("dtype");
  if (dtype != "float32" && dtype != "bfloat16") {
    json.fail("header: dtype is neither float32 nor bfloat16");
  }
  options.of.dtype = dtype == "float32" ? at::kFloat : at::kBFloat16;
  options.num_rows = json.integer("num_rows", 1, kMaxRows);
  options.capacity = json.integer("capacity", 0, kMaxEntries);
  options.evict = json.boolean("evict");
  options.text = json.text("text");
  if (std::ssize(options.text) > kMaxTextBytes) {
    json.fail(fmt::format(
        "header: text has {} bytes; expected at most {}", options.text.size(), kMaxTextBytes));
  }
  return options;
}

void check_same_layer(const std::filesystem::path& path,
                      const MemoryLayer& is,
                      const MemoryLayer& wanted) {
  const auto compare = [&](std::string_view what, const auto& a, const auto& b) {
    if (a == b) return;
    fail(path,
         fmt::format("belongs to another model: {} is {}, expected {}; use the memory that was "
                     "saved with this model",
                     what,
                     a,
                     b));
  };
  compare(
      "the model's name", config::ascii_json_text(is.model), config::ascii_json_text(wanted.model));
  compare("layer", is.layer, wanted.layer);
  compare("num_heads", is.num_heads, wanted.num_heads);
  compare("head_dim", is.head_dim, wanted.head_dim);
  if (is.dtype == wanted.dtype) return;
  fail(path,
       fmt::format("its keys are {}, those of the model as it computes here {}; give `reynard "
                   "remember` and this command the same --dtype",
                   dtype_text(is.dtype),
                   dtype_text(wanted.dtype)));
}

}  // namespace

void check_memory_options(std::string_view where, const MemoryOptions& options) {
  const auto in_range = [&](std::string_view arg, int64_t value, int64_t min, int64_t max) {
    tensor::check_value(
        value >= min && value <= max, where, arg, value, fmt::format("{} ... {}", min, max));
  };
  const MemoryLayer& of = options.of;
  in_range("bytes of the model's name", std::ssize(of.model), 0, kMaxNameBytes);
  in_range("bytes of the text's name", std::ssize(options.text), 0, kMaxTextBytes);
  in_range("layer", of.layer, 0, kMaxEntries);
  in_range("num_heads", of.num_heads, 1, kMaxHeads);
  in_range("head_dim", of.head_dim, 1, kMaxHeadDim);
  in_range("num_rows", options.num_rows, 1, kMaxRows);
  in_range("capacity", options.capacity, 0, kMaxEntries);
  tensor::check_value(of.dtype == at::kFloat || of.dtype == at::kBFloat16,
                      where,
                      "dtype",
                      c10::toString(of.dtype),
                      "Float or BFloat16");
}

MemoryFileWriter::MemoryFileWriter(const std::filesystem::path& path,
                                   const MemoryFileHeader& header)
    : file_(path) {
  const std::string json = header_text(header.options);
  write(json.data(), json.size());
  for (const MemoryFileRow& row : header.rows) {
    const std::array<int64_t, 2> ids = {row.first, row.next};
    write(ids.data(), sizeof(ids));
  }
  end_section();
}

void MemoryFileWriter::end_section() {
  constexpr std::array<char, kAlignment> kZeros = {};
  const auto size = static_cast<int64_t>(file_.size_bytes());
  write(kZeros.data(), static_cast<size_t>(aligned(size) - size));
}

void MemoryFileWriter::finish() {
  const std::string digest = file_.sha256_so_far();
  write(digest.data(), digest.size());
  file_.sync();
}

void MemoryFileWriter::commit() {
  file_.commit();
}

void check_opens(const std::filesystem::path& path) {
  const checkpoint::ReadOnlyFile file(path, kKind.remedy);
}

std::string written_digest(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(-kDigestBytes, std::ios::end);
  std::string digest(kDigestBytes, '\0');
  if (!file.read(digest.data(), kDigestBytes)) fail(path, "cannot be read");
  return digest;
}

MemoryFile::MemoryFile(const std::filesystem::path& path, const MemoryLayer& of, int64_t num_rows)
    : file_(std::make_shared<const checkpoint::ReadOnlyFile>(path, kKind.remedy)) {
  read_header(of, num_rows);
  read_rows();
  place_sections();
}

void MemoryFile::skip_to(int64_t offset) {
  TORCH_INTERNAL_ASSERT(offset >= position_);
  std::vector<char> buffer(static_cast<size_t>(std::min<int64_t>(offset - position_, 1 << 20)));
  while (position_ < offset) {
    const auto bytes = static_cast<size_t>(std::min(offset - position_, std::ssize(buffer)));
    file_->read(position_, buffer.data(), bytes);
    hash_.update(buffer.data(), bytes);
    position_ += static_cast<int64_t>(bytes);
  }
}

void MemoryFile::read(int64_t offset, void* data, size_t bytes) {
  skip_to(offset);
  file_->read(offset, data, bytes);
  hash_.update(data, bytes);
  position_ += static_cast<int64_t>(bytes);
}

void MemoryFile::check_digest() {
  skip_to(size_bytes() - kDigestBytes);
  std::string written(kDigestBytes, '\0');
  file_->read(position_, written.data(), written.size());
  if (hash_.hex() == written) return;
  fail(path(),
       fmt::format("content differs from what was written (its SHA-256); {}", kKind.remedy));
}

void MemoryFile::read_header(const MemoryLayer& of, int64_t num_rows) {
  if (size_bytes() < kHeaderBytes) {
    fail(path(),
         fmt::format("has {}, less than the header of a memory file; {}",
                     counted(size_bytes(), "byte"),
                     kKind.remedy));
  }
  std::string bytes(kHeaderBytes, '\0');
  read(0, bytes.data(), bytes.size());
  header_.options = parse_header(bytes, path());
  check_same_layer(path(), header_.options.of, of);
  if (num_rows > 0 && header_.options.num_rows != num_rows) {
    fail(path(),
         fmt::format(
             "num_rows is {}; expected {}; {}", header_.options.num_rows, num_rows, kKind.remedy));
  }
}

void MemoryFile::read_rows() {
  const int64_t num_rows = header_.options.num_rows, capacity = header_.options.capacity;
  if (size_bytes() < kHeaderBytes + num_rows * static_cast<int64_t>(sizeof(MemoryFileRow))) {
    fail(
        path(),
        fmt::format("has {} bytes, too few for {} rows; {}", size_bytes(), num_rows, kKind.remedy));
  }
  header_.rows.resize(static_cast<size_t>(num_rows));
  static_assert(sizeof(MemoryFileRow) == 16);
  read(kHeaderBytes, header_.rows.data(), header_.rows.size() * sizeof(MemoryFileRow));
  for (int64_t row = 0; row < num_rows; ++row) {
    const MemoryFileRow& ids = header_.rows[static_cast<size_t>(row)];
    const bool valid = ids.first >= 0 && ids.next >= ids.first && ids.next <= kMaxEntries &&
                       (capacity == 0 || ids.next - ids.first <= capacity);
    if (!valid) {
      fail(path(),
           fmt::format("row {} has the ids [{}, {}); expected a range from 0 with at most "
                       "capacity = {} (0: any number of) entries",
                       row,
                       ids.first,
                       ids.next,
                       capacity));
    }
  }
}

void MemoryFile::place_sections() {
  const MemoryLayer& of = header_.options.of;
  const int64_t entry_bytes = of.num_heads * of.head_dim * element_bytes(of.dtype);
  int64_t end = aligned(kHeaderBytes +
                        header_.options.num_rows * static_cast<int64_t>(sizeof(MemoryFileRow)));
  for (std::vector<int64_t>* sections : {&keys_at_, &values_at_}) {
    for (const MemoryFileRow& ids : header_.rows) {
      sections->push_back(end);
      const int64_t size = ids.next - ids.first;
      if (end > size_bytes() || size > (size_bytes() - end) / entry_bytes) {
        fail(path(),
             fmt::format("has {} bytes, too few for the entries that it lists; the file was cut "
                         "short or damaged: {}",
                         size_bytes(),
                         kKind.remedy));
      }
      end = aligned(end + size * entry_bytes);
    }
  }
  end += kDigestBytes;
  if (end != size_bytes()) {
    fail(path(),
         fmt::format("has {} bytes; expected {} for the entries that it lists; the file was cut "
                     "short or damaged: {}",
                     size_bytes(),
                     end,
                     kKind.remedy));
  }
}

}  // namespace reynard::knn
