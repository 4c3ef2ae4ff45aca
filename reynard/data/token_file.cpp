#include "reynard/data/token_file.h"

#include "reynard/checkpoint/sha256.h"
#include "reynard/config/flat_header.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <limits>

namespace reynard::data {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

constexpr config::FileKind kKind = {
    .format = kTokenFileFormat, .name = "token file", .remedy = "make one with `reynard prepare`"};
constexpr int64_t kVersion = 1;
constexpr int64_t kAnswersVersion = 2;  // of files that say which tokens count
// Far above any real file, far below an overflow of bytes in int64.
constexpr int64_t kMaxTokens = int64_t{1} << 56;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(fmt::format("{}: {}", path.string(), what));
}

TokenFileHeader parse_header(std::string_view bytes, const std::filesystem::path& path) {
  const config::FlatHeader json(bytes, path, kKind);
  const int64_t version = json.integer("version", 0, kMaxTokens);
  if (version != kVersion && version != kAnswersVersion) {
    json.fail(fmt::format(
        "token file of version {}; this program reads versions {} and {}; run `reynard prepare` "
        "again",
        version,
        kVersion,
        kAnswersVersion));
  }
  TokenFileHeader header;
  header.tokenizer = json.text("tokenizer");
  header.vocab_size = json.integer("vocab_size", 1, std::numeric_limits<int32_t>::max());
  header.bos = json.integer("bos", 0, header.vocab_size - 1);
  header.eos = json.integer("eos", 0, header.vocab_size - 1);
  header.num_tokens = json.integer("num_tokens", 1, kMaxTokens);
  header.num_documents = json.integer("num_documents", 1, header.num_tokens);
  header.num_text_bytes = json.integer("num_text_bytes", 0, kMaxTokens);
  if (version == kAnswersVersion) {
    header.num_answers = json.integer("num_answers", 1, header.num_tokens);
  }
  if (json.has("roll_seed")) {
    header.roll_seed = json.integer(
        "roll_seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  }
  const std::string dtype = token_bytes(header.vocab_size) == 2 ? "uint16" : "uint32";
  if (json.text("dtype") != dtype) {
    json.fail(fmt::format(
        "header: dtype is not {}, which vocab_size = {} asks for", dtype, header.vocab_size));
  }
  return header;
}

int64_t ends_offset(const TokenFileHeader& header) {
  const int64_t end = kTokenFileHeaderBytes + header.num_tokens * token_bytes(header.vocab_size);
  return (end + 7) / 8 * 8;
}

}  // namespace

int64_t token_bytes(int64_t vocab_size) {
  return vocab_size <= 65536 ? 2 : 4;
}

std::string header_text(const TokenFileHeader& header) {
  nlohmann::ordered_json json{{"format", kKind.format},
                              {"version", header.num_answers > 0 ? kAnswersVersion : kVersion},
                              {"dtype", token_bytes(header.vocab_size) == 2 ? "uint16" : "uint32"},
                              {"tokenizer", header.tokenizer},
                              {"vocab_size", header.vocab_size},
                              {"bos", header.bos},
                              {"eos", header.eos},
                              {"num_tokens", header.num_tokens},
                              {"num_documents", header.num_documents},
                              {"num_text_bytes", header.num_text_bytes}};
  if (header.roll_seed) json["roll_seed"] = *header.roll_seed;
  if (header.num_answers > 0) json["num_answers"] = header.num_answers;
  std::string text = json.dump();
  text.resize(kTokenFileHeaderBytes - 1, ' ');  // JSON allows blanks at its end
  text += '\n';
  return text;
}

TokenFile::TokenFile(const std::filesystem::path& path)
    : file_(path, "expected a token file of `reynard prepare`") {
  map();
  verify_ends();
  verify_answers();
}

std::string TokenFile::fingerprint() const {
  constexpr int64_t kPieces = 64, kPieceBytes = 16 << 10;
  const int64_t size = file_.size_bytes();
  checkpoint::Sha256 hash;
  if (size <= kPieces * kPieceBytes) {
    hash.update(data_, static_cast<size_t>(size));
  } else {
    for (int64_t i = 0; i < kPieces; ++i) {
      hash.update(data_ + (size - kPieceBytes) * i / (kPieces - 1), kPieceBytes);
    }
  }
  return hash.hex().substr(0, 32);
}

void TokenFile::map() {
  const int64_t size = file_.size_bytes();
  if (size == 0) fail(path(), "is empty; expected a token file of `reynard prepare`");
  std::string bytes(static_cast<size_t>(std::min(size, kTokenFileHeaderBytes)), '\0');
  file_.read(0, bytes.data(), bytes.size());
  header_ = parse_header(bytes, path());
  const int64_t expected = ends_offset(header_) +
                           header_.num_documents * static_cast<int64_t>(sizeof(int64_t)) +
                           header_.num_answers * static_cast<int64_t>(sizeof(Range));
  if (size != expected) {
    fail(path(),
         fmt::format("has {}; expected {} for {} in {}; the file was cut "
                     "short or damaged: run `reynard prepare` again",
                     counted(size, "byte"),
                     expected,
                     counted(header_.num_tokens, "token"),
                     counted(header_.num_documents, "document")));
  }
  data_ = file_.mapped();
  ends_ = reinterpret_cast<const int64_t*>(data_ + ends_offset(header_));
  answers_ = reinterpret_cast<const Range*>(ends_ + header_.num_documents);
}

void TokenFile::verify_ends() const {
  int64_t previous = 0;
  for (int64_t d = 0; d < header_.num_documents; ++d) {
    if (ends_[d] <= previous || ends_[d] > header_.num_tokens) {
      fail(path(),
           fmt::format("document {} ends at token {}; expected more than {} and at most {}",
                       d,
                       ends_[d],
                       previous,
                       header_.num_tokens));
    }
    previous = ends_[d];
  }
  if (previous != header_.num_tokens) {
    fail(path(),
         fmt::format(
             "the last document ends at token {}; expected {}", previous, header_.num_tokens));
  }
}

void TokenFile::verify_answers() const {
  int64_t previous = 0;
  for (int64_t i = 0; i < header_.num_answers; ++i) {
    const Range& answer = answers_[i];
    if (answer.begin < previous || answer.end <= answer.begin || answer.end > header_.num_tokens) {
      fail(path(),
           fmt::format("answer {} is of tokens [{}, {}); expected a range behind {} and up to {}",
                       i,
                       answer.begin,
                       answer.end,
                       previous,
                       header_.num_tokens));
    }
    previous = answer.end;
  }
}

const TokenFile::Range* TokenFile::answer_behind(int64_t position) const {
  return std::upper_bound(
      answers_, answers_ + header_.num_answers, position, [](int64_t p, const Range& answer) {
        return p < answer.end;
      });
}

bool TokenFile::any_counted(int64_t begin, int64_t end) const {
  if (header_.num_answers == 0) return begin < end;
  const Range* answer = answer_behind(begin);
  return answer != answers_ + header_.num_answers && answer->begin < end;
}

void TokenFile::read_counted(int64_t begin, std::span<float> out) const {
  const auto count = static_cast<int64_t>(out.size());
  std::fill(out.begin(), out.end(), header_.num_answers == 0 ? 1.0F : 0.0F);
  const Range* const last = answers_ + header_.num_answers;
  for (const Range* answer = answer_behind(begin); answer != last; ++answer) {
    const int64_t from = std::max<int64_t>(answer->begin - begin, 0);
    if (from >= count) break;
    std::fill(out.begin() + from, out.begin() + std::min(answer->end - begin, count), 1.0F);
  }
}

void TokenFile::read(int64_t begin, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (begin < 0 || begin > header_.num_tokens || count > header_.num_tokens - begin) {
    fail(path(),
         fmt::format("tokens [{}, {}) asked for; the file has {}",
                     begin,
                     begin + count,
                     header_.num_tokens));
  }
  const char* tokens = data_ + kTokenFileHeaderBytes;
  const bool narrow = token_bytes(header_.vocab_size) == 2;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = narrow ? reinterpret_cast<const uint16_t*>(tokens)[begin + i]
                              : reinterpret_cast<const uint32_t*>(tokens)[begin + i];
    if (id >= header_.vocab_size) {
      fail(path(),
           fmt::format("token {} has id {}; expected less than vocab_size = {}",
                       begin + i,
                       id,
                       header_.vocab_size));
    }
    out[static_cast<size_t>(i)] = id;
  }
}

std::vector<int64_t> TokenFile::read(int64_t begin, int64_t count) const {
  if (count < 0 || count > header_.num_tokens) {
    fail(path(),
         fmt::format("{} asked for; the file has {}", counted(count, "token"), header_.num_tokens));
  }
  std::vector<int64_t> ids(static_cast<size_t>(count));
  read(begin, ids);
  return ids;
}

}  // namespace reynard::data
