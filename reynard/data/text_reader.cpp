#include "reynard/data/text_reader.h"

#include "reynard/config/flat_header.h"
#include "reynard/config/json_file.h"
#include "reynard/data/byte_stream.h"
#include "reynard/data/dialogue.h"
#include "reynard/data/random.h"
#include "reynard/data/token_file.h"
#include "reynard/tokenizer/unicode.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::data {

namespace {

constexpr size_t kTextBlockBytes = 1 << 20;
constexpr size_t kMaxLineBytes = size_t{1} << 30;  // of a .jsonl file: it is held in memory
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// TextBlocks of a file without a byte order mark; tells how far it is.
class TextBlocks {
 public:
  TextBlocks(const InputFile& file, std::atomic<int64_t>& progress, const std::atomic<bool>& stop)
      : bytes_(file.path), block_(kTextBlockBytes), progress_(progress), stop_(stop) {}

  // Empty at the end.
  std::string_view next() {
    if (stop_) return {};
    size_t got = bytes_.read(block_);
    if (first_) {  // a mark may arrive in parts
      while (got > 0 && got < kByteOrderMark.size()) {
        const size_t more = bytes_.read(std::span(block_).subspan(got));
        if (more == 0) break;
        got += more;
      }
    }
    progress_ += bytes_.packed_position() - reported_;
    reported_ = bytes_.packed_position();
    std::string_view text(block_.data(), got);
    if (first_ && text.starts_with(kByteOrderMark)) {
      text.remove_prefix(kByteOrderMark.size());
      skipped_ = kByteOrderMark.size();
      first_ = false;
      return text.empty() ? next() : text;
    }
    first_ = false;
    return text;
  }
  int64_t skipped() const { return static_cast<int64_t>(skipped_); }

 private:
  ByteStream bytes_;
  std::vector<char> block_;
  std::atomic<int64_t>& progress_;
  const std::atomic<bool>& stop_;
  int64_t reported_ = 0;
  size_t skipped_ = 0;
  bool first_ = true;
};

[[noreturn]] void fail_not_text(const InputFile& file, int64_t byte, std::string_view what) {
  throw NotText(fmt::format("{}: byte {}{}: {}",
                            file.path.string(),
                            byte,
                            file.is_compressed() ? " of the unpacked text" : "",
                            what));
}

[[noreturn]] void fail_not_utf8(const InputFile& file, int64_t byte, bool ends_inside) {
  if (ends_inside) fail_not_text(file, byte, "the text ends inside a UTF-8 character");
  fail_not_text(
      file,
      byte,
      "is not UTF-8; convert the file first, for example with `iconv -f latin1 -t utf-8`");
}

// The first place from `at` on where a UTF-8 character begins, or the size.
size_t character_begin(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

void read_text_file(const InputFile& file,
                    const TextReaderOptions& options,
                    const DocumentSink& sink,
                    TextBlocks& blocks) {
  tokenizer::Utf8Validator validator;
  int64_t position = 0;  // of the block
  bool cut_to_come = options.held_out_from_byte > 0;
  sink.begin(options.held_out);
  for (auto block = blocks.next(); !block.empty(); block = blocks.next()) {
    const void* nul = std::memchr(block.data(), 0, block.size());
    const bool good = validator.feed(block);
    const int64_t nul_at =
        nul ? position + (static_cast<const char*>(nul) - block.data()) : INT64_MAX;
    if (nul && nul_at <= validator.position()) {
      if (position == 0 &&
          config::has_format(block.substr(0, size_t{kTokenFileHeaderBytes}), kTokenFileFormat)) {
        fail_not_text(file, 0, "a token file of `reynard prepare`; expected UTF-8 text");
      }
      fail_not_text(
          file, blocks.skipped() + nul_at, "a NUL byte: a binary file; expected UTF-8 text");
    }
    if (!good) fail_not_utf8(file, blocks.skipped() + validator.position(), false);
    const auto size = static_cast<int64_t>(block.size());
    if (cut_to_come && position + size > options.held_out_from_byte) {
      const auto wanted =
          static_cast<size_t>(std::max<int64_t>(options.held_out_from_byte - position, 0));
      const size_t cut = character_begin(block, wanted);
      if (cut < block.size()) {
        sink.text(block.substr(0, cut));
        sink.end();
        sink.begin(true);
        block.remove_prefix(cut);
        cut_to_come = false;
      }
    }
    sink.text(block);
    position += size;
  }
  if (!validator.finish()) fail_not_utf8(file, blocks.skipped() + validator.position(), true);
  sink.end();
}

// Whether JSON writes a half of a surrogate pair by itself, as Python's json.dumps does with text
// that holds one.
bool has_half_character(std::string_view json) {
  const auto unit_at = [&](size_t i) -> char32_t {
    if (i >= json.size() || json.substr(i, 2) != "\\u") return 0;
    return tokenizer::leading_hex(json.substr(i + 2), 4).value_or(0);
  };
  constexpr size_t kEscape = 6;  // bytes of \u0000; of others 2
  for (size_t i = json.find('\\'); i < json.size(); i = json.find('\\', i)) {
    const char32_t unit = unit_at(i);
    const bool begins_pair = unit >= 0xd800 && unit < 0xdc00;
    const char32_t low = begins_pair ? unit_at(i + kEscape) : unit;
    const bool ends_pair = low >= 0xdc00 && low < 0xe000;
    if (begins_pair != ends_pair) return true;
    i += begins_pair ? 2 * kEscape : 2;
  }
  return false;
}

class JsonLines {
 public:
  JsonLines(const InputFile& file, const TextReaderOptions& options, const DocumentSink& sink)
      : file_(file), options_(options), sink_(sink) {}

  void read(TextBlocks& blocks) {
    std::string line;
    for (auto block = blocks.next(); !block.empty(); block = blocks.next()) {
      while (!block.empty()) {
        const size_t end = block.find('\n');
        line += block.substr(0, end);
        if (line.size() > kMaxLineBytes) {
          ++number_;
          fail(fmt::format("is longer than {} bytes", kMaxLineBytes));
        }
        if (end == std::string_view::npos) break;
        add(line);
        line.clear();
        block.remove_prefix(end + 1);
      }
    }
    if (!line.empty()) add(line);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}:{}: {}", file_.path.string(), number_, what));
  }

  void add(const std::string& line) {
    ++number_;
    if (line.find_first_not_of(" \t\r") == std::string::npos) return;
    const auto json = config::parse_json_text(line);
    if (json.is_discarded()) {
      fail(
          has_half_character(line)
              ? "has an escape such as \\ud800 without its other half: no character; write \\ufffd "
                "in its place or leave the line out"
              : "is not valid JSON in UTF-8");
    }
    const bool held_out =
        unit(hash(fmt::format("{}:{}", file_.name, number_))) < options_.held_out_share;
    if (options_.dialogues) return add_dialogue(json, held_out);
    const auto text = json.is_object() ? json.find(options_.field) : json.end();
    if (!json.is_object() || text == json.end()) {
      fail(fmt::format("has no field \"{}\"; name the field of the text with --field",
                       options_.field));
    }
    if (!text->is_string()) fail(fmt::format("the field \"{}\" is not text", options_.field));
    sink_.begin(held_out);
    sink_.text(text->get_ref<const std::string&>());
    sink_.end();
  }

  void add_dialogue(const nlohmann::json& json, bool held_out) {
    std::vector<DialoguePiece> pieces;
    try {
      pieces = dialogue_pieces(json);
    } catch (const Error& error) {
      fail(error.what());
    }
    sink_.begin(held_out);
    for (const DialoguePiece& piece : pieces) {
      if (piece.answer) sink_.answer(true);
      sink_.text(piece.text);
      if (piece.answer) sink_.answer(false);
    }
    sink_.end();
  }

  const InputFile& file_;
  const TextReaderOptions& options_;
  const DocumentSink& sink_;
  int64_t number_ = 0;  // of the line, from 1
};

}  // namespace

bool begins_as_text(const InputFile& file, int64_t min_bytes) {
  std::atomic<int64_t> progress = 0;
  const std::atomic<bool> stop = false;
  TextBlocks blocks(file, progress, stop);
  tokenizer::Utf8Validator validator;
  int64_t size = 0;
  const auto enough = std::max(min_bytes, static_cast<int64_t>(kTextBlockBytes));
  for (auto block = blocks.next(); !block.empty(); block = blocks.next()) {
    if (block.find('\0') != std::string_view::npos || !validator.feed(block)) return false;
    size += static_cast<int64_t>(block.size());
    if (size >= enough) return true;
  }
  return size >= min_bytes && validator.finish();
}

void read_documents(const InputFile& file,
                    const TextReaderOptions& options,
                    const DocumentSink& sink,
                    std::atomic<int64_t>& progress,
                    const std::atomic<bool>& stop) {
  TextBlocks blocks(file, progress, stop);
  if (file.is_jsonl()) {
    JsonLines(file, options, sink).read(blocks);
  } else {
    read_text_file(file, options, sink, blocks);
  }
}

}  // namespace reynard::data
