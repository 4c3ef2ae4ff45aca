#include "reynard/data/count_pieces.h"

#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

namespace reynard::data {
namespace {

constexpr size_t kMiB = 1 << 20;  // what is read at once

std::map<std::string, int64_t> pieces_of(const std::string& text, const std::string& special) {
  const test::TempDir folder;
  test::write_file(folder / "a.txt", text);
  CountOptions options;
  options.inputs = {folder / "a.txt"};
  options.special_tokens = {special};
  options.num_threads = 2;
  const tokenizer::PieceCounts counts = count_pieces(options);  // sorted() names its texts
  std::map<std::string, int64_t> all;
  for (const auto& [piece, count] : counts.sorted()) all.emplace(piece, count);
  return all;
}

// Text is counted in blocks, which end behind a letter and before a space.
TEST(CountPieces, SpecialTokensAreNotCutAtWordEnds) {
  const std::string special = "<|a b|>";
  std::string text;
  while (text.size() < 4 * kMiB) text += " 1";
  text.replace(2, 2, " w");  // the first of the text's two words
  // The last place of a block where a word ends, whole and with its end in the next block.
  for (const size_t at : {kMiB / 2, 2 * kMiB - 5, 3 * kMiB - 7, 4 * kMiB - 7}) {
    text.replace(at, special.size(), special);
  }
  text += special + special + " z";
  std::map<std::string, int64_t> pieces = pieces_of(text, special);
  for (const auto& [piece, count] : pieces) {
    EXPECT_EQ(piece.find_first_of("<|ab>"), std::string::npos) << piece << ": " << count;
  }
  EXPECT_EQ(pieces[" w"], 1);
  EXPECT_EQ(pieces[" z"], 1);
}

// Where no word ends for long, they end anywhere.
TEST(CountPieces, SpecialTokensAreNotCutInTextWithoutWords) {
  const std::string special = "<|x|>";
  std::string text = "1";
  while (text.size() < 10 * kMiB) text += special;
  EXPECT_EQ(pieces_of(text, special), (std::map<std::string, int64_t>{{"1", 1}}));
}

}  // namespace
}  // namespace reynard::data
