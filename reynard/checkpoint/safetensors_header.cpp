#include "reynard/checkpoint/safetensors_header.h"

#include "reynard/config/fields.h"
#include "reynard/config/json_file.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

namespace reynard::checkpoint {

namespace {

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kDtypes = {{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

// libtorch's own limit on dimensions.
constexpr std::size_t kMaxDims = 64;

// Reads the header event by event, so that a hostile one costs no more memory than its tensors.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  Header take() { return std::move(header_); }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      if (!seen_.insert(name).second) reject(fmt::format("{} appears twice", json_quoted(name)));
      entry_ = name;
      in_metadata_ = name == "__metadata__";
      if (!in_metadata_) current_ = Entry{};
    } else if (in_metadata_) {
      field_ = name;
    } else {
      field_ = name;
      if (name != "dtype" && name != "shape" && name != "data_offsets") {
        reject_tensor(fmt::format("unknown field {}", json_quoted(name)));
      }
      const bool is_read = name == "dtype" ? current_.dtype.has_value() : numbers().has_value();
      if (is_read) reject_tensor(fmt::format("{} appears twice", name));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 2 && in_metadata_) scalar("an object");
    if (depth_ == 2 || in_array_) reject_tensor("unexpected object");
    ++depth_;
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) finish_tensor();
    --depth_;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ == 0 || in_metadata_) scalar("a list");
    if (depth_ != 2 || in_array_ || (field_ != "shape" && field_ != "data_offsets")) {
      reject_tensor("unexpected array");
    }
    in_array_ = true;
    numbers().emplace();
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return scalar("a number");
    if (numbers()->size() == kMaxDims) reject_tensor(fmt::format("{} is too long", field_));
    numbers()->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ != 2 || in_array_) return scalar("a string");
    if (in_metadata_) {
      if (!header_.metadata.emplace(field_, value).second) {
        reject(fmt::format("metadata {} appears twice", json_quoted(field_)));
      }
      return true;
    }
    if (field_ != "dtype") return scalar("a string");
    current_.dtype = value;
    return true;
  }

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return scalar("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return scalar("a fraction"); }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool parse_error(std::size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    reject(fmt::format("header is not valid JSON at byte {}", position));
  }

 private:
  struct Entry {
    std::optional<std::string> dtype;
    std::optional<std::vector<uint64_t>> shape, offsets;
  };

  std::optional<std::vector<uint64_t>>& numbers() {
    return field_ == "shape" ? current_.shape : current_.offsets;
  }

  [[noreturn]] void reject(const std::string& problem) const {
    throw Error(fmt::format("{}: {}", file_, problem));
  }
  [[noreturn]] void reject_tensor(const std::string& problem) const {
    reject(fmt::format("tensor {}: {}", json_quoted(entry_), problem));
  }
  [[noreturn]] bool scalar(std::string_view what) const {
    if (depth_ == 0) reject("header is not a JSON object");
    if (in_metadata_) reject(fmt::format("metadata holds {}; expected strings", what));
    reject_tensor(fmt::format("{} holds {}", depth_ == 1 ? "its entry" : field_, what));
  }

  void finish_tensor() {
    if (!current_.dtype) reject_tensor("has no dtype");
    if (!current_.shape) reject_tensor("has no shape");
    if (!current_.offsets) reject_tensor("has no data_offsets");
    const auto found = std::ranges::find_if(
        kDtypes, [&](const auto& entry) { return entry.first == *current_.dtype; });
    if (found == kDtypes.end()) {
      reject_tensor(fmt::format("dtype {} is not supported", json_quoted(*current_.dtype)));
    }
    if (current_.offsets->size() != 2) reject_tensor("data_offsets must be two numbers");
    TensorInfo info{.name = entry_, .dtype = found->second, .shape = {}, .begin = 0, .end = 0};
    info.begin = (*current_.offsets)[0];
    info.end = (*current_.offsets)[1];
    if (info.begin > info.end) {
      reject_tensor(fmt::format("data_offsets [{}, {}] go backwards", info.begin, info.end));
    }
    const uint64_t expected = size_bytes(info);
    if (info.end - info.begin != expected) {
      reject_tensor(fmt::format("data_offsets [{}, {}] hold {}; {} {} needs {}",
                                info.begin,
                                info.end,
                                counted(info.end - info.begin, "byte"),
                                found->first,
                                fmt::format("[{}]", fmt::join(info.shape, ", ")),
                                expected));
    }
    header_.tensors.push_back(std::move(info));
  }

  // Fills info.shape. Dimensions of 0 count as 1 in the overflow check: strides multiply them too.
  uint64_t size_bytes(TensorInfo& info) const {
    int64_t product = static_cast<int64_t>(c10::elementSize(info.dtype));
    bool empty = false;
    for (const uint64_t size : *current_.shape) {
      if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
          __builtin_mul_overflow(product, std::max<int64_t>(1, size), &product)) {
        reject_tensor(fmt::format("shape [{}] is too large", fmt::join(*current_.shape, ", ")));
      }
      empty = empty || size == 0;
      info.shape.push_back(static_cast<int64_t>(size));
    }
    return empty ? 0 : static_cast<uint64_t>(product);
  }

  const std::string& file_;
  Header header_;
  std::unordered_set<std::string> seen_;
  std::string entry_, field_;  // key at depth 1, key at depth 2
  Entry current_;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
};

void check_cover(const Header& header, const std::string& file, uint64_t data_bytes) {
  std::vector<const TensorInfo*> ordered;
  for (const TensorInfo& info : header.tensors) {
    if (info.end > data_bytes) {
      throw Error(
          fmt::format("{}: tensor {}: data_offsets [{}, {}] lie outside the {} data bytes; "
                      "the file is cut short or its header is wrong",
                      file,
                      json_quoted(info.name),
                      info.begin,
                      info.end,
                      data_bytes));
    }
    ordered.push_back(&info);
  }
  std::ranges::sort(ordered, [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t covered = 0;
  const TensorInfo* before = nullptr;
  for (const TensorInfo* info : ordered) {
    if (info->begin < covered) {
      throw Error(fmt::format("{}: tensors {} and {} overlap",
                              file,
                              json_quoted(before->name),
                              json_quoted(info->name)));
    }
    if (info->begin > covered) {
      throw Error(fmt::format("{}: {} bytes before tensor {} belong to no tensor",
                              file,
                              info->begin - covered,
                              json_quoted(info->name)));
    }
    covered = info->end;
    before = info;
  }
  if (covered != data_bytes) {
    throw Error(
        fmt::format("{}: the last {} bytes belong to no tensor", file, data_bytes - covered));
  }
}

}  // namespace

Header parse_header(std::string_view text, const std::string& file, uint64_t data_bytes) {
  // The parser takes a zero byte for the end, whatever follows it.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw Error(fmt::format("{}: header is not valid JSON at byte {}", file, zero + 1));
  }
  HeaderReader reader(file);
  nlohmann::json::sax_parse(text, &reader);
  Header header = reader.take();
  check_cover(header, file, data_bytes);
  return header;
}

std::string_view dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : kDtypes) {
    if (type == dtype) return name;
  }
  throw Error(fmt::format("safetensors: dtype {} cannot be written", c10::toString(dtype)));
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.find('/') == std::string_view::npos && name != "." && name != ".." &&
         config::printable(name) == name;
}

std::string json_quoted(std::string_view name) {
  constexpr std::size_t kShown = 100;
  std::string text = config::ascii_json_text(name.substr(0, kShown));
  if (name.size() > kShown) text += "...";
  return text;
}

}  // namespace reynard::checkpoint
