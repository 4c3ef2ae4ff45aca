#include "reynard/data/prepare.h"

#include "reynard/data/count_pieces.h"
#include "reynard/data/token_file.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/data/prepared.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace reynard::test {
namespace {

using data::PrepareOptions;
using data::PrepareSummary;
using data::TokenFile;

TEST_F(Prepare, FilesOfAFolderAreDocumentsInTheOrderOfTheirNames) {
  add("b.txt", "second");
  add("a/z.txt", "first");
  add("c.bin", std::string("\0\1\2", 3));
  add("d.txt", "caf\xe9");  // latin1
  add("e.txt", "");
  add(".git/config", "hidden");
  const PrepareSummary summary = data::prepare(options({folder_ / "in"}));
  EXPECT_EQ(texts(folder_ / "out/train.tokens"), (Texts{"first", "second"}));
  EXPECT_EQ(summary.num_files, 3);  // of which one is empty
  ASSERT_EQ(summary.skipped.size(), 3U);
  EXPECT_EQ(summary.skipped[0].reason, "hidden files and folders");
  EXPECT_EQ(summary.skipped[0].names, std::vector<std::string>{folder_ / "in/.git"});
  EXPECT_EQ(summary.skipped[1].count, 2);
  ASSERT_EQ(summary.skipped[1].names.size(), 2U);
  EXPECT_SAYS(summary.skipped[1].names[0], "c.bin: byte 0: a NUL byte");
  EXPECT_SAYS(summary.skipped[1].names[1], "d.txt: byte 3: ");
  EXPECT_EQ(summary.skipped[2].reason, "empty documents");
  EXPECT_EQ(summary.written[0].num_text_bytes, 11);
  EXPECT_EQ(summary.written[0].num_tokens, 15);
}

// Not even the pieces before the place that says so.
TEST_F(Prepare, OfFilesThatAreNotTextNoPieceIsCounted) {
  add("a.txt", "good text");
  data::CountOptions options;
  options.inputs = {folder_ / "in"};
  options.num_threads = 2;
  const auto counts = [&] {
    const auto pieces = data::count_pieces(options);  // sorted() names its texts
    std::vector<std::pair<std::string, int64_t>> all;
    for (const auto& [piece, count] : pieces.sorted()) {
      all.emplace_back(piece, count);
    }
    return all;
  };
  const auto alone = counts();
  std::string late(3 << 20, ' ');
  for (size_t i = 0; i < late.size(); i += 8) late.replace(i, 3, "bad");
  add("b.txt", late + "\xff");
  EXPECT_EQ(counts(), alone);
}

TEST_F(Prepare, PatternsChooseAmongTheFilesOfFolders) {
  add("a.py", "python");
  add("b.txt", "text");
  add("sub/c.py", "deep");
  auto all = options({folder_ / "in"});
  all.patterns = {"*.py"};
  EXPECT_EQ(prepared(all), (Texts{"python", "deep"}));
  all.patterns = {"sub/*", "*.txt"};
  EXPECT_EQ(prepared(all), (Texts{"text", "deep"}));
  all.patterns = {"*.c"};
  std::filesystem::remove_all(folder_ / "out");
  EXPECT_EQ(error_of(all), "no file matches --glob *.c");
}

TEST_F(Prepare, LinesOfJsonlFilesAreDocuments) {
  const auto path = add("a.jsonl",
                        "{\"text\": \"one\\n\", \"id\": 1}\n\n{\"text\": \"\"}\r\n"
                        "{\"text\": \"caf\\u00e9\"}");  // no newline at the end
  EXPECT_EQ(prepared(options({path})), (Texts{"one\n", "caf\xc3\xa9"}));
  auto content = options({add("b.jsonl", "{\"content\": \"x\"}\n")});
  content.field = "content";
  EXPECT_EQ(prepared(content), (Texts{"x"}));
}

TEST_F(Prepare, PackedFilesAreUnpacked) {
  const std::string big(3 << 20, 'x');
  const std::string padding(1 << 20, '\0');  // as tapes have it
  const auto gz =                            // two members
      add("a.txt.gz", gzip(big) + padding + gzip("tail") + padding);
  const auto zst = add("b.zst", zstd(big) + zstd("tail"));  // two frames
  const auto lines = add("c.jsonl.gz", gzip("{\"text\": \"line\"}\n"));
  EXPECT_EQ(prepared(options({gz, zst, lines})), (Texts{big + "tail", big + "tail", "line"}));
}

TEST_F(Prepare, AByteOrderMarkIsNotText) {
  EXPECT_EQ(prepared(options({add("a.txt",
                                  "\xef\xbb\xbf"
                                  "a"),
                              add("b.jsonl", "\xef\xbb\xbf{\"text\": \"b\"}")})),
            (Texts{"a", "b"}));
}

TEST_F(Prepare, BadInputIsOneErrorThatNamesTheFileAndThePlace) {
  const auto error = [&](const std::string& name, const std::string& text) {
    return error_of(options({add(name, text)}));
  };
  EXPECT_EQ(error_of(options({folder_ / "in/none.txt"})),
            "none.txt: there is no such file or folder");
  EXPECT_EQ(error_of(options({"/dev/null"})), "/dev/null: is neither a file nor a folder");
  EXPECT_EQ(error("empty.txt", ""), "empty.txt: is empty; expected text");
  EXPECT_EQ(error("empty.gz", gzip("")), "empty.gz: is empty; expected text");
  EXPECT_EQ(error("b.txt", "ab" + std::string(1, '\0')),
            "b.txt: byte 2: a NUL byte: a binary file; expected UTF-8 text");
  const std::string text(2 << 20, 'x');
  EXPECT_EQ(error("l.txt", text + "\xe9 "),
            "l.txt: byte 2097152: is not UTF-8; convert the file first, for example with `iconv "
            "-f latin1 -t utf-8`");
  EXPECT_EQ(error("m.txt",
                  "\xef\xbb\xbf"
                  "ab\xff"),
            "m.txt: byte 5: is not UTF-8; convert the file first, for example with `iconv "
            "-f latin1 -t utf-8`");
  EXPECT_EQ(error("c.txt", "ab\xe2\x82"), "c.txt: byte 2: the text ends inside a UTF-8 character");
  EXPECT_EQ(error("g.gz", gzip("ab\xff")),
            "g.gz: byte 2 of the unpacked text: is not UTF-8; convert the file first, for example "
            "with `iconv -f latin1 -t utf-8`");
  EXPECT_EQ(error("cut.gz", gzip(text).substr(0, 1000)), "cut.gz: the gzip file is cut short");
  EXPECT_EQ(error("cut.zst", zstd(text).substr(0, 60)), "cut.zst: the zstd file is cut short");
  EXPECT_SAYS(error("padded.gz", gzip(text) + std::string(5, '\0') + "more"),
              "padded.gz: is not valid gzip at byte ");
  EXPECT_SAYS(error("zeros.gz", std::string(5, '\0')), "zeros.gz: is not valid gzip at byte ");
  EXPECT_NE(error("not.gz", "plain text").find("not.gz: is not valid gzip"), std::string::npos);
  EXPECT_NE(error("not.zst", "plain text").find("not.zst: is not valid zstd"), std::string::npos);
  EXPECT_EQ(error("a.jsonl", "{\"text\": \"x\"}\n{\"text\": 3}\n"),
            "a.jsonl:2: the field \"text\" is not text");
  EXPECT_EQ(error("b.jsonl", "{\"body\": \"x\"}\n"),
            "b.jsonl:1: has no field \"text\"; name the field of the text with --field");
  EXPECT_EQ(error("c.jsonl", "\n[]\n"),
            "c.jsonl:2: has no field \"text\"; name the field of the text with --field");
  EXPECT_EQ(error("d.jsonl", "{\"text\": \"caf\xe9\"}\n"), "d.jsonl:1: is not valid JSON in UTF-8");
  const std::string pair = "{\"text\": \"\\ud83d\\ude00\"}\n";
  for (const char* half : {"\\ud83d", "\\uDE00", "\\ud83d\\ud83d\\ude00", "\\\\\\ud83d\\u0041"}) {
    EXPECT_EQ(error("h.jsonl", pair + "{\"text\": \"" + half + "\"}\n"),
              "h.jsonl:2: has an escape such as \\ud800 without its other half: no character; "
              "write \\ufffd in its place or leave the line out")
        << half;
  }
  EXPECT_EQ(error("i.jsonl", "{\"text\": \"\\\\ud83d\", x}\n"),
            "i.jsonl:1: is not valid JSON in UTF-8");
  EXPECT_EQ(error("e.jsonl", std::string(1 << 20, '[')), "e.jsonl:1: is not valid JSON in UTF-8");
  EXPECT_NE(error("f.jsonl", "\n\n").find("no text was found"), std::string::npos);
}

TEST_F(Prepare, AFolderWithoutTextIsAnError) {
  std::filesystem::create_directories(folder_ / "in");
  EXPECT_NE(error_of(options({folder_ / "in"})).find("holds no files"), std::string::npos);
  add("a.bin", std::string(4, '\0'));
  EXPECT_NE(
      error_of(options({folder_ / "in"})).find("files that are not UTF-8 text: 1, first a.bin"),
      std::string::npos);
}

// A circle of links has no end, and what a link leads to may be far from what was named.
TEST_F(Prepare, LinksToFoldersAreLeftOutAndNamed) {
  add("a.txt", "text");
  add("real/b.txt", "more");
  std::filesystem::create_directory_symlink("..", folder_ / "in/real/z");
  std::filesystem::create_directory_symlink("real", folder_ / "in/link");
  std::filesystem::create_directory_symlink("real", folder_ / "in/.hidden");
  const PrepareSummary summary = data::prepare(options({folder_ / "in"}));
  EXPECT_EQ(texts(folder_ / "out/train.tokens"), (Texts{"text", "more"}));
  ASSERT_EQ(summary.skipped.size(), 2U);  // and .hidden
  EXPECT_EQ(summary.skipped[0].reason, "links to folders (to read one, name it itself)");
  EXPECT_EQ(summary.skipped[0].count, 2);
  EXPECT_EQ(summary.skipped[0].names.at(0), folder_ / "in/link");
  EXPECT_EQ(prepared(options({folder_ / "in/link"})), (Texts{"more"}));
  // Where there is nothing else, they are the reason.
  std::filesystem::remove_all(folder_ / "out");
  std::filesystem::remove(folder_ / "in/a.txt");
  std::filesystem::remove_all(folder_ / "in/real");
  std::filesystem::remove(folder_ / "in/link");
  std::filesystem::create_directory_symlink(folder_.path(), folder_ / "in/link");
  EXPECT_EQ(error_of(options({folder_ / "in"})),
            (folder_ / "in").string() +
                ": holds no files; link is a link to a folder: to read it, name it itself");
}

TEST_F(Prepare, LinksThatLeadNowhereAreLeftOutAndNamed) {
  add("a.txt", "text");
  std::filesystem::create_symlink("/nowhere/b.txt", folder_ / "in/b.txt");
  std::filesystem::create_symlink("/nowhere/c.md", folder_ / "in/c.md");
  PrepareOptions given = options({folder_ / "in"});
  given.patterns = {"*.txt"};
  const PrepareSummary summary = data::prepare(given);
  EXPECT_EQ(texts(folder_ / "out/train.tokens"), (Texts{"text"}));
  ASSERT_EQ(summary.skipped.size(), 1U);
  EXPECT_EQ(summary.skipped[0].reason, "links that lead nowhere, pipes and the like");
  EXPECT_EQ(summary.skipped[0].count, 1);
  EXPECT_EQ(summary.skipped[0].names.at(0), folder_ / "in/b.txt");
}

TEST_F(Prepare, OutputsOfEarlierRunsAreLeftOutAndNamed) {
  add("a.txt", "text");
  test::write_file(folder_ / "gpt2.json", test::byte_level_json().dump());
  auto again = options({folder_ / "in"});
  again.tokenizer = (folder_ / "gpt2.json").string();
  again.output = folder_ / "in/data";
  data::prepare(again);
  const std::string once = test::read_file(folder_ / "in/data/train.tokens");
  test::write_file(folder_ / "in/data/notes.txt", "notes");
  PrepareSummary summary = data::prepare(again);
  EXPECT_EQ(test::read_file(folder_ / "in/data/train.tokens"), once);
  EXPECT_EQ(summary.num_files, 1);
  ASSERT_EQ(summary.skipped.size(), 1U);
  EXPECT_EQ(summary.skipped[0].reason, "the output folder and copies of tokenizers");
  EXPECT_EQ(summary.skipped[0].names.at(0), folder_ / "in/data");
  std::filesystem::remove(folder_ / "in/data/notes.txt");
  // Copies lie beside the token files of other runs too.
  again.output = folder_ / "out";
  summary = data::prepare(again);
  EXPECT_EQ(test::read_file(folder_ / "out/train.tokens"), once);
  ASSERT_EQ(summary.skipped.size(), 2U);  // and train.tokens, which is no text
  EXPECT_EQ(summary.skipped[0].reason, "the output folder and copies of tokenizers");
  // The folder of the texts may be the output folder.
  again.output = folder_ / "in";
  for (int run = 0; run < 2; ++run) {
    data::prepare(again);
    EXPECT_EQ(test::read_file(folder_ / "in/train.tokens"), once);
  }
}

TEST_F(Prepare, FilesOfAnEarlierRunStayWhenTheInputIsBad) {
  data::prepare(options({add("a.txt", "good")}));
  EXPECT_THROW(data::prepare(options({add("b.txt", "\xff")})), Error);
  EXPECT_EQ(texts(folder_ / "out/train.tokens"), (Texts{"good"}));
}

TEST_F(Prepare, RejectsBadOptions) {
  const auto path = add("a.txt", "text");
  const auto with = [&](auto change) {
    PrepareOptions changed = options({path});
    change(changed);
    return error_of(changed);
  };
  EXPECT_NE(with([](auto& o) { o.inputs = {}; }).find("no input"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.output = ""; }).find("--output"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.held_out = 1; }).find("--held-out 1"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.held_out = -0.1; }).find("--held-out"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.min_bytes = 0; }).find("--min-bytes 0"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.roll_min_tokens = 0; }).find("--roll-min"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.num_threads = -1; }).find("--threads"), std::string::npos);
  EXPECT_NE(with([](auto& o) { o.tokenizer = "bpe"; }).find("bpe"), std::string::npos);
  EXPECT_NE(with([&](auto& o) { o.output = path; }).find("cannot be made"), std::string::npos);
}

TEST_F(Prepare, ShortAndRepeatedDocumentsAreLeftOutOnRequest) {
  add("a.txt", "long enough");
  add("b.txt", "short");
  add("c.txt", "long enough");
  auto some = options({folder_ / "in"});
  some.min_bytes = 6;
  some.deduplicate = true;
  const PrepareSummary summary = data::prepare(some);
  EXPECT_EQ(texts(folder_ / "out/train.tokens"), (Texts{"long enough"}));
  ASSERT_EQ(summary.skipped.size(), 2U);
  EXPECT_EQ(summary.skipped[0].reason, "documents of less than 6 bytes");
  EXPECT_EQ(summary.skipped[1].reason, "documents that came before");
}

TEST_F(Prepare, TheResultDoesNotDependOnTheNumberOfThreads) {
  std::string letters(100000, 'a');
  for (int i = 0; i < 60; ++i) {
    for (char& c : letters) c = static_cast<char>('a' + (c * 31 + i) % 26);
    add(std::to_string(i) + ".txt", letters.substr(0, static_cast<size_t>(1 + i * 1517)));
  }
  auto all = options({folder_ / "in"});
  all.roll_seed = 3;
  all.held_out = 0.2;
  std::vector<std::string> bytes;
  for (const int64_t threads : {1, 2, 7}) {
    all.num_threads = threads;
    data::prepare(all);
    bytes.push_back(test::read_file(folder_ / "out/train.tokens") +
                    test::read_file(folder_ / "out/held_out.tokens"));
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_EQ(bytes[0], bytes[2]);
}

TEST_F(Prepare, TextSurvivesAnyRoute) {
  EXPECT_TRUE(rc::check([&] {
    const auto piece = rc::gen::element<std::string>("a", "\n", "\xc3\xa9", "\xe2\x82\xac", "\"\\");
    std::string text = *rc::gen::map(rc::gen::container<Texts>(piece), [](const Texts& pieces) {
      std::string joined = "x";
      for (const std::string& p : pieces) joined += p;
      return joined;
    });
    const auto repeat = *rc::gen::element(1, 3, 40000);  // longer than the blocks too
    std::string longer;
    for (int i = 0; i < repeat; ++i) longer += text;
    const auto inputs = {
        add("a.txt", longer), add("b.gz", gzip(longer)), add("c.zst", zstd(longer))};
    RC_ASSERT(prepared(options(inputs)) == (Texts{longer, longer, longer}));
  }));
}

TEST_F(Prepare, MutatedFilesNeverCrash) {
  const std::string lines = "{\"text\": \"one \\u00e9 two\"}\n{\"text\": \"three\", \"n\": [1]}\n";
  const std::map<std::string, std::string> files = {
      {"a.txt", "plain text, caf\xc3\xa9"},
      {"b.jsonl", lines},
      {"c.jsonl.gz", gzip(lines)},
      {"d.zst", zstd(std::string(3000, 'x') + lines)}};
  const std::vector<std::string> words = {
      "\"text\"", std::string(1, '\0'), "\\ud800", "\xff", "{{{"};
  test::repeat_for(8, 2000, [&](uint64_t i) {
    SCOPED_TRACE(i);
    const auto& [name, text] = *std::next(files.begin(), static_cast<long>(i % files.size()));
    auto mutated = options({add(name, test::Mutator(i).mutate(text, words))});
    mutated.output = folder_ / "mutated";
    try {
      data::prepare(mutated);
      const TokenFile file(folder_ / "mutated/train.tokens");
      file.read(0, file.num_tokens());
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  });
}

TEST_F(Prepare, ReportsProgressUpToTheEnd) {
  const auto path = add("a.txt", std::string(100, 'x'));
  int64_t last = 0;
  data::prepare(options({path}), [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 100);
    EXPECT_GE(done, last);
    last = done;
  });
  EXPECT_EQ(last, 100);
}

}  // namespace
}  // namespace reynard::test
