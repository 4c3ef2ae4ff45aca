#include "reynard/evaluation/ruler.h"

#include "reynard/evaluation/named.h"
#include "reynard/evaluation/shuffle.h"
#include "reynard/tensor/check.h"
#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

namespace reynard::evaluation {

namespace {

// Benchmark data, quoted exactly (NOTICE). {0}: type of the value, {1}: context, {2}: query.
constexpr std::string_view kMagicNeedle = "One of the special magic {0} for {1} is: {2}.";
constexpr std::string_view kManyNeedles =
    "Some special magic {0} are hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the {0} afterwards.\n{1}\nWhat are all the special magic {0} for {2} mentioned "
    "in the provided text? The special magic {0} for {2} mentioned in the provided text are";
constexpr std::string_view kOneNeedle =
    "A special magic {0} is hidden within the following text. Make sure to memorize it. I will "
    "quiz "
    "you about the {0} afterwards.\n{1}\nWhat is the special magic {0} for {2} mentioned in the "
    "provided text? The special magic {0} for {2} mentioned in the provided text is";
constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
// {0}: context, {1}: value, {2}: number of variables.
constexpr std::string_view kVariables =
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{0}\nQuestion: Find all variables that are assigned the value {1} in the text above. Answer: "
    "According to the chain(s) of variable assignment in the text above, {2} variables are "
    "assigned "
    "the value {1}, they are: ";
constexpr std::string_view kCommonWords =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{0}\nQuestion: What are the 10 most common words "
    "in "
    "the above list? Answer: The top 10 words that appear most often in the list are:";
constexpr std::string_view kFrequentWords =
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {0}\nQuestion: Do not provide any explanation. Please ignore "
    "the dots '....'. What are the three most frequently appeared words in the above coded text? "
    "Answer: According to the coded text above, the three most frequently appeared words are:";
constexpr int64_t kShort = 4096;  // below, lists of words are smaller
constexpr int64_t kHops = 4;      // assignments of a chain behind its first
constexpr size_t kCommon = 10;    // words of cwe that are asked for

// `count` of 0 ... size - 1, distinct, ascending.
std::vector<int64_t> places(int64_t size, size_t count, PythonRandom& random) {
  std::set<int64_t> chosen;
  while (chosen.size() < count) chosen.insert(random.up_to(size - 1));
  return {chosen.begin(), chosen.end()};
}

std::string letters(PythonRandom& random, int64_t count, char first) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += static_cast<char>(first + random.up_to(25));
  return text;
}

std::vector<std::string> distinct_letters(PythonRandom& random,
                                          size_t count,
                                          int64_t size,
                                          char first) {
  std::vector<std::string> names;
  while (names.size() < count) {
    std::string name = letters(random, size, first);
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  }
  return names;
}

enum class Value { kNumbers, kWords, kUuids };
enum class Hay { kNoise, kEssay, kNeedles };

std::string name_of(Value type) {
  return type == Value::kNumbers ? "numbers" : type == Value::kWords ? "words" : "uuids";
}

// 128 random bits as a version-4 UUID.
std::string uuid(PythonRandom& random) {
  std::array<uint32_t, 4> bits{random.next(), random.next(), random.next(), random.next()};
  bits[1] = (bits[1] & 0xffff0fffU) | 0x00004000U;
  bits[2] = (bits[2] & 0x3fffffffU) | 0x80000000U;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:04x}{:08x}",
                     bits[0],
                     bits[1] >> 16,
                     bits[1] & 0xffffU,
                     bits[2] >> 16,
                     bits[2] & 0xffffU,
                     bits[3]);
}

std::string draw(Value type, const RulerSources& sources, PythonRandom& random) {
  if (type == Value::kNumbers) return std::to_string(1'000'000 + random.up_to(8'999'999));
  if (type == Value::kUuids) return uuid(random);
  const auto one_of = [&](const std::vector<std::string>& list) {
    const std::vector<std::string>& words = list.empty() ? sources.words : list;
    return words[random.up_to(static_cast<int64_t>(words.size()) - 1)];
  };
  const std::string first = one_of(sources.adjectives);
  return first + "-" + one_of(sources.nouns);
}

std::vector<std::string> sentences_of(const std::vector<std::string>& words, int64_t count) {
  std::vector<std::string> sentences(1);
  for (int64_t i = 0; i < count; ++i) {
    const std::string& word = words[i % words.size()];
    std::string& sentence = sentences.back();
    if (!sentence.empty()) sentence += ' ';
    sentence += word;
    const bool ends = word.ends_with('.') || word.ends_with('!') || word.ends_with('?');
    if (ends && i + 1 < count) sentences.emplace_back();
  }
  return sentences;
}

// Needles between the sentences of an essay, at distinct ones of 40 depths from 0 to 100 %.
std::string among_sentences(const std::vector<std::string>& sentences,
                            const std::vector<std::string>& needles,
                            PythonRandom& random) {
  const auto piece = [&](size_t begin, size_t end) {
    return fmt::format("{}",
                       fmt::join(sentences.begin() + static_cast<std::ptrdiff_t>(begin),
                                 sentences.begin() + static_cast<std::ptrdiff_t>(end),
                                 " "));
  };
  // As published, pieces without a sentence are joined too: they leave a second blank.
  std::vector<std::string> parts;
  size_t done = 0;
  size_t needle = 0;
  for (const int64_t depth : places(40, needles.size(), random)) {
    const double percent = std::round(static_cast<double>(depth) * 100 / 39);
    const auto at = static_cast<size_t>(static_cast<double>(sentences.size()) * (percent / 100));
    parts.push_back(piece(done, at));
    parts.push_back(needles[needle++]);
    done = at;
  }
  parts.push_back(piece(done, sentences.size()));
  return fmt::format("{}", fmt::join(parts, " "));
}

// Each needle is inserted before a distinct line; the first needle comes last, as published.
std::string among_lines(std::vector<std::string> lines,
                        const std::vector<std::string>& needles,
                        PythonRandom& random) {
  std::vector<int64_t> at = places(static_cast<int64_t>(lines.size()), needles.size(), random);
  std::reverse(at.begin(), at.end());
  for (size_t i = 0; i < at.size(); ++i) lines.insert(lines.begin() + at[i], needles[i]);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

struct NeedleKind {
  Hay hay;
  Value key, value;
  int64_t keys = 1, values = 1, queries = 1;
};

std::string needle_context(const NeedleKind& kind,
                           const RulerSources& sources,
                           const std::vector<std::string>& needles,
                           PythonRandom& random,
                           int64_t size) {
  if (kind.hay == Hay::kEssay) {
    return among_sentences(sentences_of(sources.essay_words, size), needles, random);
  }
  std::vector<std::string> lines;
  for (int64_t i = 0; i < std::max<int64_t>(size, static_cast<int64_t>(needles.size())); ++i) {
    lines.push_back(kind.hay == Hay::kNoise ? std::string(kNoise)
                                            : fmt::format(fmt::runtime(kMagicNeedle),
                                                          name_of(kind.value),
                                                          draw(kind.key, sources, random),
                                                          draw(kind.value, sources, random)));
  }
  return among_lines(std::move(lines), needles, random);
}

RulerSample needle_sample(const NeedleKind& kind,
                          const RulerSources& sources,
                          PythonRandom& random,
                          int64_t size) {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;
  std::vector<std::string> needles;
  for (int64_t k = 0; k < kind.keys; ++k) {
    keys.push_back(draw(kind.key, sources, random));
    values.emplace_back();
    for (int64_t v = 0; v < kind.values; ++v) {
      values.back().push_back(draw(kind.value, sources, random));
      needles.push_back(fmt::format(
          fmt::runtime(kMagicNeedle), name_of(kind.value), keys.back(), values.back().back()));
    }
  }
  shuffle(needles, random);
  const std::string context = needle_context(kind, sources, needles, random, size);

  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  shuffle(order, random);
  RulerSample sample;
  std::vector<std::string> queries;
  for (int64_t q = 0; q < kind.queries; ++q) {
    queries.push_back(keys[order[q]]);
    for (const std::string& value : values[order[q]]) sample.answers.push_back(value);
  }
  std::string query = queries.back();
  if (queries.size() > 1) {
    queries.pop_back();
    query = fmt::format("{}, and {}", fmt::join(queries, ", "), query);
  }
  std::string type = name_of(kind.value);
  const bool one = kind.queries * kind.values == 1;
  if (one) type.pop_back();
  sample.text = fmt::format(fmt::runtime(one ? kOneNeedle : kManyNeedles), type, context, query);
  return sample;
}

template <Hay kHay, Value kKey, Value kValue, int kKeys = 1, int kValues = 1, int kQueries = 1>
RulerSample make_needles(
    const RulerSources& sources, PythonRandom& random, int64_t size, int64_t, int64_t) {
  return needle_sample({kHay, kKey, kValue, kKeys, kValues, kQueries}, sources, random, size);
}

// The solved example before the question has three-letter names.
RulerSample make_variables(
    const RulerSources& sources, PythonRandom& random, int64_t size, int64_t, int64_t) {
  const RulerSample example = ruler_variables(random, sources.example_lines, 3);
  RulerSample sample = ruler_variables(random, size, 5);
  sample.text =
      fmt::format("{} {}\n\n{}", example.text, fmt::join(example.answers, " "), sample.text);
  return sample;
}

std::string numbered(const std::vector<std::string>& words) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) {
    list += fmt::format("{}{}. {}", i ? " " : "", i + 1, words[i]);
  }
  return list;
}

// `size` words, ten of which are common.
RulerSample common_words(const RulerSources& sources,
                         PythonRandom& random,
                         int64_t size,
                         int64_t common_repeats,
                         int64_t other_repeats) {
  std::vector<std::string> drawn;
  const auto known = static_cast<int64_t>(sources.words.size());
  for (const int64_t i : places(known, static_cast<size_t>(std::min(size, known)), random)) {
    drawn.push_back(sources.words[i]);
  }
  shuffle(drawn, random);
  std::vector<std::string> list;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const int64_t repeats = i < kCommon ? common_repeats : other_repeats;
    list.insert(list.end(), static_cast<size_t>(repeats), drawn[i]);
  }
  shuffle(list, random);
  drawn.resize(std::min(kCommon, drawn.size()));
  return {fmt::format(fmt::runtime(kCommonWords), numbered(list)), drawn};
}

RulerSample make_common_words(
    const RulerSources& sources, PythonRandom& random, int64_t size, int64_t length, int64_t) {
  const bool small = length < kShort;
  const RulerSample example =
      small ? common_words(sources, random, 20, 3, 1) : common_words(sources, random, 40, 10, 3);
  RulerSample sample = common_words(sources, random, size, small ? 6 : 30, small ? 1 : 3);
  sample.text = fmt::format("{} {}\n{}", example.text, numbered(example.answers), sample.text);
  return sample;
}

// Word r occurs floor(N r^-2 / zeta(2)) times; the most frequent is replaced by dots.
RulerSample make_frequent_words(
    const RulerSources&, PythonRandom& random, int64_t size, int64_t length, int64_t) {
  constexpr double kZeta2 = 1.6449340668482264;
  const size_t vocabulary = static_cast<size_t>(std::max<int64_t>(4, (length - 50) / 50));
  std::vector<std::string> words = distinct_letters(random, vocabulary, 6, 'a');
  words[0] = "...";
  std::vector<std::string> text;
  for (size_t rank = 1; rank <= words.size(); ++rank) {
    const double share = std::pow(static_cast<double>(rank), -2.0) / kZeta2;
    text.insert(
        text.end(), static_cast<size_t>(static_cast<double>(size) * share), words[rank - 1]);
  }
  shuffle(text, random);
  return {fmt::format(fmt::runtime(kFrequentWords), fmt::join(text, " ")),
          {words[1], words[2], words[3]}};
}

RulerSample make_squad(
    const RulerSources& s, PythonRandom& random, int64_t size, int64_t, int64_t index) {
  return ruler_question(s.squad, random, size, index);
}
RulerSample make_hotpot(
    const RulerSources& s, PythonRandom& random, int64_t size, int64_t, int64_t index) {
  return ruler_question(s.hotpot, random, size, index);
}

constexpr auto kNumbers = Value::kNumbers;
constexpr auto kWords = Value::kWords;
constexpr auto kUuids = Value::kUuids;

// Of 53 words the fourth most frequent occurs twice, the fifth once; of more it is never as often.
constexpr int64_t kLeastFrequent = 53;

constexpr std::array kRulerTasks = {
    RulerTask{"niah_single_1", 128, 1, 1, false, make_needles<Hay::kNoise, kWords, kNumbers>},
    RulerTask{"niah_single_2", 128, 0, 25, false, make_needles<Hay::kEssay, kWords, kNumbers>},
    RulerTask{"niah_single_3", 128, 0, 25, false, make_needles<Hay::kEssay, kWords, kUuids>},
    RulerTask{"niah_multikey_1", 128, 0, 25, false, make_needles<Hay::kEssay, kWords, kNumbers, 4>},
    RulerTask{"niah_multikey_2", 128, 1, 1, false, make_needles<Hay::kNeedles, kWords, kNumbers>},
    RulerTask{"niah_multikey_3", 128, 1, 1, false, make_needles<Hay::kNeedles, kUuids, kUuids>},
    RulerTask{
        "niah_multivalue", 128, 0, 25, false, make_needles<Hay::kEssay, kWords, kNumbers, 1, 4>},
    RulerTask{
        "niah_multiquery", 128, 0, 25, false, make_needles<Hay::kEssay, kWords, kNumbers, 4, 1, 4>},
    RulerTask{"vt", 30, kHops + 1, 1, false, make_variables},
    RulerTask{"cwe", 120, kCommon + 1, 1, false, make_common_words},
    RulerTask{"fwe", 50, kLeastFrequent, 1, false, make_frequent_words},
    RulerTask{"qa_1", 32, 1, 1, true, make_squad},
    RulerTask{"qa_2", 32, 1, 1, true, make_hotpot},
};

}  // namespace

RulerSample ruler_variables(PythonRandom& random, int64_t lines, int64_t name_size) {
  const std::vector<std::string> names = distinct_letters(random, kHops + 1, name_size, 'A');
  const std::string value = std::to_string(10000 + random.up_to(89998));
  std::vector<std::string> chain{fmt::format("VAR {} = {}", names[0], value)};
  for (int64_t hop = 0; hop < kHops; ++hop) {
    chain.push_back(fmt::format("VAR {} = VAR {} ", names[hop + 1], names[hop]));
  }
  const auto size = std::max<int64_t>(lines, kHops + 1);
  const std::vector<int64_t> at = places(size, chain.size(), random);
  std::vector<std::string> all(static_cast<size_t>(size), std::string(kNoise));
  for (size_t i = 0; i < chain.size(); ++i) {
    all.insert(all.begin() + at[i] + static_cast<int64_t>(i), chain[i]);
  }
  return {fmt::format(fmt::runtime(kVariables), fmt::join(all, "\n"), value, names.size()), names};
}

std::span<const RulerTask> ruler_tasks() {
  return kRulerTasks;
}

const RulerTask& ruler_task_named(std::string_view name) {
  return find_named("ruler", kRulerTasks, name);
}

std::vector<std::string> words_of(std::string_view text, size_t most) {
  std::vector<std::string> words;
  std::set<std::string> seen;
  std::string word;
  bool plain = true;  // of a to z alone
  for (size_t i = 0; i <= text.size() && words.size() < most;) {
    const tokenizer::CodePoint c =
        i < text.size() ? tokenizer::code_point_at(text, i) : tokenizer::CodePoint{' '};
    i += static_cast<size_t>(c.length);
    if (tokenizer::char_class(c.value) == tokenizer::CharClass::kLetter) {
      plain = plain && c.value >= 'a' && c.value <= 'z';
      if (plain) word += static_cast<char>(c.value);
      continue;
    }
    const bool fits = plain && word.size() >= 3 && word.size() <= 12;
    if (fits && seen.insert(word).second) words.push_back(word);
    word.clear();
    plain = true;
  }
  return words;
}

}  // namespace reynard::evaluation
