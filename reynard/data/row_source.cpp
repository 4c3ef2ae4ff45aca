#include "reynard/data/row_source.h"

#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <variant>
#include <vector>

namespace reynard::data {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

int64_t num_pairs(const TokenFile& file, int64_t document) {
  return file.document_end(document) - file.document_begin(document) - 1;
}

// Rows of so many new pairs each that all documents one after the other fill; at least one.
int64_t num_rows(const TokenFile& file, int64_t pairs_of_row) {
  return std::max<int64_t>((file.num_tokens() - file.num_documents()) / pairs_of_row, 1);
}

// Copies pairs [offset, offset + n) of a document to the row from position `at` on.
void copy_pairs(const TokenFile& file,
                int64_t document,
                int64_t offset,
                int64_t n,
                int64_t at,
                const Row& row) {
  const int64_t begin = file.document_begin(document) + offset;
  const auto to = static_cast<size_t>(at);
  const auto count = static_cast<size_t>(n);
  file.read(begin, row.tokens.subspan(to, count));
  file.read(begin + 1, row.targets.subspan(to, count));
  file.read_counted(begin + 1, row.counts.subspan(to, count));
}

// The order of all epochs as one endless list of documents.
class DocumentOrder {
 public:
  DocumentOrder(int64_t num_documents, uint64_t seed)
      : num_documents_(num_documents), seed_(seed), order_(num_documents_, seed, stream(0)) {}
  int64_t operator[](int64_t position) {
    const int64_t epoch = position / num_documents_;
    if (epoch != epoch_) {
      order_ = Permutation(num_documents_, seed_, stream(epoch));
      epoch_ = epoch;
    }
    return order_[position % num_documents_];
  }

 private:
  static uint64_t stream(int64_t epoch) {
    return random_bits(kOrderStream, 0, static_cast<uint64_t>(epoch));
  }
  int64_t num_documents_;
  uint64_t seed_;
  int64_t epoch_ = 0;
  Permutation order_;
};

// A walk through documents: where it stands.
struct Cursor {
  int64_t position = 0;  // in the document order
  int64_t offset = 0;    // pairs of the document that were delivered
};

nlohmann::json to_json(const Cursor& cursor) {
  return {{"position", cursor.position}, {"offset", cursor.offset}};
}

Cursor cursor_from(const nlohmann::json& state, const TokenFile& file, DocumentOrder& order) {
  Cursor cursor{state_integer(state, "position", kMaxInt), 0};
  const int64_t pairs = num_pairs(file, order[cursor.position]);
  cursor.offset = state_integer(state, "offset", std::max<int64_t>(pairs, 1));
  return cursor;
}

class PackedRows {
 public:
  PackedRows(const TokenFile& file, const LoaderConfig& config)
      : file_(file),
        order_(file.num_documents(), static_cast<uint64_t>(config.seed)),
        length_(config.length) {}

  int64_t fill(int64_t /*walk*/, const Row& row) {
    const auto length = static_cast<int64_t>(row.tokens.size());
    for (int64_t at = 0; at < length;) {
      const int64_t document = order_[cursor_.position];
      const int64_t left = num_pairs(file_, document) - cursor_.offset;
      const int64_t n = std::min(length - at, left);
      if (n > 0) {
        copy_pairs(file_, document, cursor_.offset, n, at, row);
        // A row that goes on inside a document begins with BOS too: the token before the cut is
        // seen by no query, as the rest of its row is.
        row.tokens[static_cast<size_t>(at)] = file_.header().bos;
        row.starts[static_cast<size_t>(at)] = true;
      }
      at += n;
      cursor_.offset += n;
      if (n == left) cursor_ = {cursor_.position + 1, 0};
    }
    return 0;
  }
  nlohmann::json state() const { return to_json(cursor_); }
  void restore(const nlohmann::json& state) { cursor_ = cursor_from(state, file_, order_); }
  int64_t rows_of_one_pass() const { return num_rows(file_, length_); }

 private:
  const TokenFile& file_;
  DocumentOrder order_;
  int64_t length_;
  Cursor cursor_;
};

class OrderedRows {
 public:
  OrderedRows(const TokenFile& file, const LoaderConfig& config, int64_t num_walks)
      : file_(file),
        order_(file.num_documents(), static_cast<uint64_t>(config.seed)),
        new_tokens_(config.new_tokens()),
        walks_(static_cast<size_t>(num_walks)) {
    for (Walk& walk : walks_) walk.cursor.position = next_++;
  }

  int64_t fill(int64_t index, const Row& row) {
    Walk& walk = walks_[static_cast<size_t>(index)];
    const auto length = static_cast<int64_t>(row.tokens.size());
    Walk next;  // where the row's next tokens begin
    for (int64_t at = 0; at < length;) {
      if (at == new_tokens_) next = walk;
      const Cursor cursor = walk.cursor;
      const int64_t document = order_[cursor.position];
      const int64_t left = num_pairs(file_, document) - cursor.offset;
      const int64_t end = at < new_tokens_ ? new_tokens_ : length;
      const int64_t n = std::min(end - at, left);
      if (n > 0) {
        copy_pairs(file_, document, cursor.offset, n, at, row);
        row.starts[static_cast<size_t>(at)] = cursor.offset == 0;
      }
      at += n;
      walk.cursor.offset += n;
      if (n < left) continue;
      if (walk.begun.empty()) {
        walk.begun.push_back(next_);
        next.begun.push_back(next_++);
      }
      walk.cursor = {walk.begun.front(), 0};
      walk.begun.erase(walk.begun.begin());
    }
    if (new_tokens_ < length) walk = next;
    return 0;
  }
  nlohmann::json state() const {
    nlohmann::json rows = nlohmann::json::array();
    for (const Walk& walk : walks_) {
      rows.push_back(to_json(walk.cursor));
      if (!walk.begun.empty()) rows.back()["begun"] = walk.begun;
    }
    return {{"next", next_}, {"rows", rows}};
  }
  void restore(const nlohmann::json& state) {
    const auto rows = state.find("rows");
    if (rows == state.end() || !rows->is_array() || rows->size() != walks_.size()) {
      throw Error(fmt::format("loader state: rows is not a list of {} places", walks_.size()));
    }
    next_ = state_integer(state, "next", kMaxInt);
    for (size_t i = 0; i < walks_.size(); ++i) {
      walks_[i] = {cursor_from((*rows)[i], file_, order_), begun_from((*rows)[i])};
    }
  }
  int64_t rows_of_one_pass() const { return num_rows(file_, new_tokens_); }

 private:
  // Where a walk stands and the documents, in the order, that its last row began behind it.
  struct Walk {
    Cursor cursor;
    std::vector<int64_t> begun;
  };

  std::vector<int64_t> begun_from(const nlohmann::json& state) const {
    const nlohmann::json begun = state.value("begun", nlohmann::json::array());
    const auto place = [&](const nlohmann::json& item) {
      return item.is_number_integer() && item.get<int64_t>() >= 0 && item.get<int64_t>() < next_;
    };
    if (!begun.is_array() || !std::ranges::all_of(begun, place)) {
      throw Error("loader state: begun is not a list of documents that were begun");
    }
    return begun.get<std::vector<int64_t>>();
  }

  const TokenFile& file_;
  DocumentOrder order_;
  int64_t new_tokens_;  // of a row; the rest comes again
  std::vector<Walk> walks_;
  int64_t next_ = 0;  // position in the order of the next document to begin
};

class SliceRows {
 public:
  SliceRows(const TokenFile& file, const LoaderConfig& config)
      : file_(file), length_(config.length), seed_(static_cast<uint64_t>(config.seed)) {
    int64_t longest = 0;
    for (int64_t d = 0; d < file.num_documents(); ++d) {
      const int64_t pairs = num_pairs(file, d);
      longest = std::max(longest, pairs);
      if (pairs < length_) continue;
      num_slices_ += pairs / length_;
      documents_.push_back({num_slices_, d});
    }
    if (num_slices_ == 0) {
      throw Error(
          fmt::format("{}: mode = \"slices\" with length = {} needs a document of more "
                      "than {}; the longest has {}; use a shorter length or mode = "
                      "\"packed\"",
                      file.path().string(),
                      length_,
                      counted(length_, "token"),
                      longest + 1));
    }
  }

  int64_t fill(int64_t /*walk*/, const Row& row) {
    const int64_t epoch = position_ / num_slices_;
    if (epoch != epoch_) {
      epoch_ = epoch;
      order_ = Permutation(num_slices_, seed_, stream(kOrderStream));
    }
    const int64_t slice = order_[position_ % num_slices_];
    const auto after = std::upper_bound(
        documents_.begin(), documents_.end(), slice, [](int64_t s, const Slices& document) {
          return s < document.end;
        });
    const int64_t pairs = num_pairs(file_, after->document);
    const int64_t count = pairs / length_;
    const int64_t first_slice = after->end - count;
    // What a document has beyond whole slices is left out at another place in every epoch.
    const int64_t slack = pairs - count * length_;
    const auto bits =
        random_bits(seed_, stream(kOffsetStream), static_cast<uint64_t>(after->document));
    const int64_t offset = below(bits, slack + 1) + (slice - first_slice) * length_;
    copy_pairs(file_, after->document, offset, length_, 0, row);
    row.tokens[0] = file_.header().bos;
    row.starts[0] = true;
    ++position_;
    return 0;
  }
  nlohmann::json state() const { return {{"position", position_}}; }
  void restore(const nlohmann::json& state) {
    position_ = state_integer(state, "position", kMaxInt);
  }
  int64_t rows_of_one_pass() const { return num_slices_; }

 private:
  struct Slices {
    int64_t end;  // number of slices of all documents up to this one
    int64_t document;
  };
  uint64_t stream(RandomStream use) const {
    return random_bits(use, 1, static_cast<uint64_t>(epoch_));
  }

  const TokenFile& file_;
  int64_t length_;
  uint64_t seed_;
  std::vector<Slices> documents_;  // those with at least one slice
  int64_t num_slices_ = 0;
  int64_t position_ = 0;  // slices delivered
  int64_t epoch_ = -1;
  Permutation order_{1, 0, 0};
};

class PaddedRows {
 public:
  PaddedRows(const TokenFile& file, const LoaderConfig& config)
      : file_(file),
        config_(config),
        documents_(documents_that_count()),
        order_(std::ssize(documents_), static_cast<uint64_t>(config.seed)) {}

  int64_t fill(int64_t /*walk*/, const Row& row) {
    const int64_t document = documents_[order_[position_]];
    const int64_t pairs = std::min(num_pairs(file_, document), config_.length);
    const uint64_t bits = random_bits(static_cast<uint64_t>(config_.seed),
                                      random_bits(kPaddingStream, 0, 0),
                                      static_cast<uint64_t>(position_));
    const int64_t before = config_.random_padding ? below(bits, config_.length - pairs + 1) : 0;
    std::ranges::fill(row.tokens, file_.header().eos);
    std::ranges::fill(row.targets, file_.header().eos);
    std::ranges::fill(row.counts, 0.0F);
    copy_pairs(file_, document, 0, pairs, before, row);
    for (const int64_t start : {int64_t{0}, before, before + pairs}) {
      if (start < config_.length) row.starts[static_cast<size_t>(start)] = true;
    }
    ++position_;
    return before;
  }
  nlohmann::json state() const { return {{"position", position_}}; }
  void restore(const nlohmann::json& state) {
    position_ = state_integer(state, "position", kMaxInt);
  }
  int64_t rows_of_one_pass() const { return std::ssize(documents_); }

 private:
  // Those with a token that counts before they are cut.
  std::vector<int64_t> documents_that_count() const {
    std::vector<int64_t> documents;
    for (int64_t d = 0; d < file_.num_documents(); ++d) {
      const int64_t first = file_.document_begin(d) + 1;
      const int64_t last = std::min(first + config_.length, file_.document_end(d));
      if (file_.any_counted(first, last)) documents.push_back(d);
    }
    if (documents.empty()) {
      throw Error(
          fmt::format("{}: no document has an answer in its first {} tokens; use a larger "
                      "data.length",
                      file_.path().string(),
                      config_.length + 1));
    }
    return documents;
  }

  const TokenFile& file_;
  const LoaderConfig& config_;
  std::vector<int64_t> documents_;
  DocumentOrder order_;
  int64_t position_ = 0;  // rows delivered
};

}  // namespace

int64_t state_integer(const nlohmann::json& state, const char* key, int64_t limit) {
  const auto member = state.find(key);
  if (member == state.end() || !member->is_number_integer() ||
      (member->is_number_unsigned() && member->get<uint64_t>() > static_cast<uint64_t>(kMaxInt)) ||
      member->get<int64_t>() < 0 || member->get<int64_t>() >= limit) {
    throw Error(
        fmt::format("loader state: {} is not an integer in 0 ... {}; the state is damaged or of "
                    "another token file",
                    key,
                    limit - 1));
  }
  return member->get<int64_t>();
}

void fill_repeated(const TokenFile& file,
                   const LoaderConfig& config,
                   uint64_t counter,
                   const Row& row) {
  const auto seed = static_cast<uint64_t>(config.seed);
  uint64_t draw = 0;
  const auto random_below = [&](int64_t n) {
    return below(random_bits(seed, random_bits(kRepeatStream, 1, counter), draw++), n);
  };
  // Octaves instead of exp(uniform(log)): integers are the same on every machine.
  const int64_t longest = config.length / 2;
  int64_t octaves = 0;
  while ((config.repeat_min_length << octaves) <= longest) ++octaves;
  const int64_t low = config.repeat_min_length << random_below(std::max<int64_t>(octaves, 1));
  const int64_t wanted = std::min(low + random_below(low), longest);

  // A document is drawn by its length; one that is too short gives all it has at the last attempt.
  int64_t begin = 0;
  int64_t size = 0;
  for (int attempt = 0; attempt < 64 && size < wanted; ++attempt) {
    const int64_t position = random_below(file.num_tokens());
    int64_t first = 0;
    int64_t last = file.num_documents() - 1;
    while (first < last) {
      const int64_t middle = first + (last - first) / 2;
      if (position < file.document_end(middle)) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    const int64_t text = std::max<int64_t>(num_pairs(file, first) - 1, 0);  // no BOS, no EOS
    if (std::min(text, wanted) <= size) continue;
    size = std::min(text, wanted);
    begin = file.document_begin(first) + 1 + random_below(text - size + 1);
  }
  if (size == 0) throw Error(fmt::format("{}: has no text to repeat", file.path().string()));
  std::vector<int64_t> piece(static_cast<size_t>(size) + 1);
  piece[0] = file.header().bos;
  file.read(begin, std::span(piece).subspan(1));
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    row.tokens[i] = piece[i % piece.size()];
    row.targets[i] = piece[(i + 1) % piece.size()];
  }
  row.starts[0] = true;
}

struct RowSource::Rows {
  std::variant<PackedRows, SliceRows, OrderedRows, PaddedRows> of_mode;
};

RowSource::RowSource(const TokenFile& file, const LoaderConfig& config, int64_t num_walks) {
  switch (config.mode) {
    case LoaderMode::kPacked:
      rows_ = std::make_unique<Rows>(PackedRows(file, config));
      break;
    case LoaderMode::kSlices:
      rows_ = std::make_unique<Rows>(SliceRows(file, config));
      break;
    case LoaderMode::kOrdered:
      rows_ = std::make_unique<Rows>(OrderedRows(file, config, num_walks));
      break;
    case LoaderMode::kPadded:
      rows_ = std::make_unique<Rows>(PaddedRows(file, config));
      break;
  }
}

RowSource::~RowSource() = default;

int64_t RowSource::fill(int64_t walk, const Row& row) {
  return std::visit([&](auto& rows) { return rows.fill(walk, row); }, rows_->of_mode);
}

nlohmann::json RowSource::state() const {
  return std::visit([](const auto& rows) { return rows.state(); }, rows_->of_mode);
}

void RowSource::restore(const nlohmann::json& state) {
  std::visit([&](auto& rows) { rows.restore(state); }, rows_->of_mode);
}

int64_t RowSource::rows_of_one_pass() const {
  return std::visit([](const auto& rows) { return rows.rows_of_one_pass(); }, rows_->of_mode);
}

}  // namespace reynard::data
