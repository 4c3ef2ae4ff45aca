#include "reynard/tokenizer/pre_tokenizer.h"

#include "reynard/tokenizer/byte_pair.h"
#include "reynard/tokenizer/normalizer.h"
#include "reynard/tokenizer/unicode.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace reynard::tokenizer {

namespace {

// The package takes digits from Unicode 17 and what its patterns mean from Unicode 16.
bool is_number(char32_t c) {
  return char_class(c) == CharClass::kNumber || (c >= 0x11de0 && c <= 0x11de9) ||
         (c >= 0x16ff4 && c <= 0x16ff6);
}

struct Part {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool match = false;
};

// Joins parts, which cover a text, as the behaviour says; parts to leave out become empty.
std::vector<Part> joined(std::vector<Part> parts, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kIsolated) return parts;
  std::vector<Part> out;
  if (behavior == SplitBehavior::kRemoved) {
    std::copy_if(parts.begin(), parts.end(), std::back_inserter(out), [](const Part& part) {
      return !part.match;
    });
    return out;
  }
  const bool from_right = behavior == SplitBehavior::kMergedWithNext;
  if (from_right) std::reverse(parts.begin(), parts.end());
  bool previous = false;
  for (const Part& part : parts) {
    const bool joins =
        behavior == SplitBehavior::kContiguous ? part.match == previous : part.match && !previous;
    if (!joins || out.empty()) {
      out.push_back(part);
    } else if (from_right) {
      out.back().begin = part.begin;
    } else {
      out.back().end = part.end;
    }
    previous = part.match;
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

// Parts of the text, matches and what is between them.
class Parts {
 public:
  void match(std::size_t begin, std::size_t end) {
    if (begin > end_) parts_.push_back({end_, begin, false});
    parts_.push_back({begin, end, true});
    end_ = end;
  }
  std::vector<Part> finish(std::size_t size) {
    if (end_ < size) parts_.push_back({end_, size, false});
    return std::move(parts_);
  }

 private:
  std::vector<Part> parts_;
  std::size_t end_ = 0;
};

void put(std::string_view text,
         const std::vector<Part>& parts,
         std::vector<std::string_view>& pieces) {
  for (const Part& part : parts) {
    if (part.end > part.begin) pieces.push_back(text.substr(part.begin, part.end - part.begin));
  }
}

// What a piece was split as, and how much of its beginning was put there.
struct Whole {
  std::string_view text;
  std::size_t put_before = 0;
};

struct Splitter {
  std::string_view text;
  bool at_begin;
  std::size_t put_before;
  TextStore& store;
  std::vector<std::string_view>& pieces;

  Whole operator()(const PrefixSpace&) const {
    const bool has_space = text.substr(0, 1) == " ";
    const std::string_view kept = has_space ? text : store.keep(std::string(" ").append(text));
    pieces.push_back(kept);
    return {kept, put_before + (has_space ? 0 : 1)};
  }

  Whole operator()(const FamilySplit& family) const {
    split_text(family.pattern, text, pieces);
    return {text, put_before};
  }

  Whole operator()(const RegexSplit& split) const {
    Parts parts;
    split.regex.for_each_match(
        text, [&](std::size_t begin, std::size_t end) { parts.match(begin, end); });
    std::vector<Part> all = parts.finish(text.size());
    if (split.invert) {
      for (Part& part : all) part.match = !part.match;
    }
    put(text, joined(std::move(all), split.behavior), pieces);
    return {text, put_before};
  }

  Whole operator()(const DigitSplit& digits) const {
    Parts parts;
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint c = code_point_at(text, i);
      const std::size_t end = i + static_cast<std::size_t>(c.length);
      if (is_number(c.value)) parts.match(i, end);
      i = end;
    }
    const auto behavior = digits.each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    put(text, joined(parts.finish(text.size()), behavior), pieces);
    return {text, put_before};
  }

  Whole operator()(const MetaspaceSplit& metaspace) const {
    const std::string& mark = metaspace.replacement;
    std::string replaced = replace_all(text, " ", mark);
    const bool prepend = metaspace.prepend == MetaspaceSplit::Prepend::kAlways ||
                         (metaspace.prepend == MetaspaceSplit::Prepend::kFirst && at_begin);
    const bool marks = prepend && !replaced.starts_with(mark);
    if (marks) replaced.insert(0, mark);
    const std::string_view kept = store.keep(replaced);
    const Whole whole{kept, put_before + (marks ? mark.size() : 0)};
    if (!metaspace.split) {
      pieces.push_back(kept);
      return whole;
    }
    Parts parts;
    for (std::size_t at = kept.find(mark); at != std::string_view::npos;
         at = kept.find(mark, at + mark.size())) {
      parts.match(at, at + mark.size());
    }
    put(kept, joined(parts.finish(kept.size()), SplitBehavior::kMergedWithNext), pieces);
    return whole;
  }
};

}  // namespace

std::string_view TextStore::keep(std::string_view text) {
  std::string& kept = texts_.emplace_back();
  kept.reserve(text.size() + PieceCache::kPadding);
  kept += text;
  kept.append(PieceCache::kPadding, '\0');
  return std::string_view(kept).substr(0, text.size());
}

void PreTokenizer::split(std::string_view text,
                         bool at_begin,
                         TextStore& store,
                         std::vector<std::string_view>& pieces) const {
  pieces.clear();
  if (!text.empty()) pieces.push_back(text);
  // The first pieces, if they begin the text: so many bytes were put before what is there of it.
  // What is left behind a mark that was put there and removed begins the text as well.
  std::vector<std::size_t> put_before;
  if (at_begin) put_before.push_back(0);
  std::vector<std::string_view> before;
  for (const PreTokenizerStep& step : steps_) {
    before.swap(pieces);
    pieces.clear();
    std::vector<std::size_t> put_before_pieces;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const bool begins = i < put_before.size();
      const std::size_t num_pieces = pieces.size();
      const Whole whole =
          std::visit(Splitter{before[i], begins, begins ? put_before[i] : 0, store, pieces}, step);
      for (std::size_t k = num_pieces; begins && k < pieces.size(); ++k) {
        const auto at = static_cast<std::size_t>(pieces[k].data() - whole.text.data());
        if (at > whole.put_before) break;
        put_before_pieces.push_back(whole.put_before - at);
      }
    }
    put_before = std::move(put_before_pieces);
  }
}

bool PreTokenizer::marks_begin() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const PreTokenizerStep& step) {
    const auto* split = std::get_if<MetaspaceSplit>(&step);
    return split && split->prepend == MetaspaceSplit::Prepend::kFirst;
  });
}

bool PreTokenizer::keeps_word_ends() const {
  return std::none_of(steps_.begin(), steps_.end(), [](const PreTokenizerStep& step) {
    return std::holds_alternative<RegexSplit>(step);
  });
}

bool PreTokenizer::splits_at_word_ends(bool metaspace) const {
  return std::any_of(steps_.begin(), steps_.end(), [&](const PreTokenizerStep& step) {
    const auto* split = std::get_if<MetaspaceSplit>(&step);
    return split ? split->split : !metaspace && std::holds_alternative<FamilySplit>(step);
  });
}

bool PreTokenizer::splits_after_newlines() const {
  bool splits = false;
  for (const PreTokenizerStep& step : steps_) {
    splits = splits || std::holds_alternative<FamilySplit>(step);
    // These put something before what begins with no space.
    if (std::holds_alternative<PrefixSpace>(step)) return false;
    if (std::holds_alternative<MetaspaceSplit>(step)) return false;
  }
  return splits;
}

}  // namespace reynard::tokenizer
