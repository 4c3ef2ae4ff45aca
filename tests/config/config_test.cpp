#include "reynard/config/config.h"

#include "reynard/config/nearest_key.h"
#include "reynard/tensor/error.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace {

using namespace reynard;

enum class Shape { kRound, kSquare };
config::EnumNames<Shape> enum_names(Shape) {
  return {{Shape::kRound, "round"}, {Shape::kSquare, "square"}};
}

struct Layer {
  int64_t num_heads = 4;
  int64_t width = 64;
  std::optional<double> decay;
  static void fields(auto& self, auto&& field) {
    field("num_heads", self.num_heads, "heads", config::positive);
    field("width", self.width, "width", config::positive);
    field("decay", self.decay, "decay time", config::positive);
  }
  void check(config::Problems& problems, const std::string& path) const {
    if (width % num_heads != 0) {
      problems.add(config::key(path, "num_heads"),
                   "must divide " + config::key(path, "width") + " = " + std::to_string(width));
    }
  }
};

struct Trial {
  std::string name;
  double rate = 0.1;
  static void fields(auto& self, auto&& field) {
    field("name", self.name, "name");
    field("rate", self.rate, "rate", config::fraction);
  }
};

struct Example {
  bool enabled = false;
  Shape shape = Shape::kRound;
  Layer model;
  double any_number = 1;
  std::vector<int64_t> lengths{1, 2};
  std::vector<Shape> shapes;
  std::vector<bool> flags;
  std::vector<Trial> trials;
  std::optional<Trial> extra;
  std::optional<std::string> note;
  static void fields(auto& self, auto&& field) {
    field("enabled", self.enabled, "on or off");
    field("shape", self.shape, "which shape");
    field("model", self.model, "the model");
    field("any_number", self.any_number, "a number without a rule");
    field("lengths", self.lengths, "lengths", config::positive);
    field("shapes", self.shapes, "shapes");
    field("flags", self.flags, "flags");
    field("trials", self.trials, "trials");
    field("extra", self.extra, "one more trial");
    field("note", self.note, "free text");
  }
};

std::string error_of(std::string_view toml, std::vector<std::string> overrides = {}) {
  return test::error_of([&] { config::from_toml<Example>(toml, "a.toml", overrides); });
}

TEST(Config, ReadsEveryKindOfField) {
  const auto read = config::from_toml<Example>(R"(
enabled = true
shape = "square"
any_number = 3           # an integer is a number
lengths = [4, 5, 6]
shapes = ["round", "square"]
note = "a \"quoted\" note"
[model]
num_heads = 8
decay = 2.5
[[trials]]
name = "first"
[[trials]]
name = "second"
rate = 1
)",
                                               "a.toml");
  EXPECT_TRUE(read.enabled);
  EXPECT_EQ(read.shape, Shape::kSquare);
  EXPECT_EQ(read.any_number, 3);
  EXPECT_EQ(read.lengths, (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(read.shapes, (std::vector{Shape::kRound, Shape::kSquare}));
  EXPECT_EQ(read.note, "a \"quoted\" note");
  EXPECT_EQ(read.model.num_heads, 8);
  EXPECT_EQ(read.model.width, 64);  // default
  EXPECT_EQ(read.model.decay, 2.5);
  ASSERT_EQ(read.trials.size(), 2U);
  EXPECT_EQ(read.trials[1].name, "second");
  EXPECT_EQ(read.trials[1].rate, 1);
  EXPECT_FALSE(read.extra.has_value());
}

TEST(Config, OverridesAreAppliedLast) {
  const std::vector<std::string> overrides{"--model.num_heads=16",
                                           "--model.decay=1e-3",
                                           "--shape=square",
                                           "--lengths=7,8",
                                           "--shapes=[round, square]",
                                           "--enabled=true",
                                           "--note=a=b",
                                           "--extra.name=x",
                                           "--model.width=1_600"};
  const auto read =
      config::from_toml<Example>("[model]\nnum_heads = 2\nwidth = 32\n", "a.toml", overrides);
  EXPECT_EQ(read.model.num_heads, 16);
  EXPECT_EQ(read.model.width, 1600);
  EXPECT_EQ(read.model.decay, 1e-3);
  EXPECT_EQ(read.shape, Shape::kSquare);
  EXPECT_EQ(read.lengths, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(read.shapes, (std::vector{Shape::kRound, Shape::kSquare}));
  EXPECT_TRUE(read.enabled);
  EXPECT_EQ(read.note, "a=b");
  EXPECT_EQ(read.extra->name, "x");
}

// Names without quotes, however they are set apart.
TEST(Config, BlanksAroundItemsOfAListDoNotCount) {
  for (const char* shapes : {"[round , square ]", "round , square ", " round,  square"}) {
    const std::vector<std::string> overrides{fmt::format("--shapes={}", shapes)};
    EXPECT_EQ(config::from_toml<Example>("", "a.toml", overrides).shapes,
              (std::vector{Shape::kRound, Shape::kSquare}))
        << shapes;
  }
}

TEST(Config, AnEmptyOverrideUnsetsAnOptional) {
  const std::vector<std::string> overrides{"--model.decay="};
  EXPECT_FALSE(config::from_toml<Example>("[model]\ndecay = 3.0\n", "a", overrides).model.decay);
}

TEST(Config, ReportsEveryMistakeTogetherWithFileAndLine) {
  EXPECT_EQ(error_of(R"(enabled = "yes"
shape = "oval"
num_layers = 3
[model]
num_head = 8
width = 0
[extra]
rate = 1.5
)",
                     {"--model.decay=-1", "--any_number=three"}),
            "a.toml:1: enabled = \"yes\"; must be true or false\n"
            "a.toml:2: shape = \"oval\"; must be one of round, square\n"
            "a.toml:6: model.width = 0; must be > 0\n"
            "--model.decay = -1; must be > 0\n"
            "--any_number = three; must be a number\n"
            "a.toml:8: extra.rate = 1.5; must be between 0 and 1\n"
            "a.toml:5: model.num_head is not a known key; did you mean model.num_heads?\n"
            "a.toml:3: num_layers is not a known key");
}

TEST(Config, CrossFieldProblemsNameThePlaceAndTheValue) {
  EXPECT_EQ(error_of("[model]\nnum_heads = 7\n"),
            "a.toml:2: model.num_heads = 7; must divide model.width = 64");
  EXPECT_EQ(error_of("[model]\nwidth = 30\n"),
            "a.toml: model.num_heads = 4 (default); must divide model.width = 30");
  EXPECT_EQ(error_of("", {"--model.num_heads=7"}),
            "--model.num_heads = 7; must divide model.width = 64");
}

TEST(Config, CrossFieldProblemsUseTheNamesOfTheFile) {
  config::Problems problems("config.json");
  problems.set_name("model.num_heads", "n_head");
  problems.set_name("model.width", "n_embd");
  problems.set_value("model.num_heads", "config.json", "7");
  problems.add("model.num_heads", "must divide model.width = 64; num_heads_min is a width");
  EXPECT_EQ(problems.lines(),
            std::vector<std::string>{
                "config.json: n_head = 7; must divide n_embd = 64; num_heads_min is a width"});
}

TEST(Config, CheckSeesDefaultsForValuesThatBreakTheirRules) {
  // check divides by num_heads; what it says of a width that cannot be read would only confuse.
  EXPECT_EQ(error_of("[model]\nwidth = \"wide\"\nnum_heads = 7\n"),
            "a.toml:2: model.width = \"wide\"; must be an integer");
  EXPECT_EQ(error_of("[model]\nnum_heads = 0\n"), "a.toml:2: model.num_heads = 0; must be > 0");
}

TEST(Config, ASectionAloneKeepsItsPathInMessages) {
  const config::Table file = config::parse_toml("[model]\nwidht = 1\nnum_heads = 0\n", "a.toml");
  try {
    config::from_table<Layer>(
        std::get<config::Table>(file.find("model")->value), "a.toml", {}, "model");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "a.toml:3: model.num_heads = 0; must be > 0\n"
                 "a.toml:2: model.widht is not a known key; did you mean model.width?");
  }
}

TEST(Config, SuggestsTheRightSection) {
  EXPECT_EQ(error_of("num_heads = 2\n"),
            "a.toml:1: num_heads is not a known key; did you mean model.num_heads?");
  EXPECT_EQ(error_of("[[trials]]\nnam = \"x\"\n"),
            "a.toml:2: trials[0].nam is not a known key; did you mean trials[].name?");
}

TEST(Config, OfTwoNearKeysSuggestsTheOneInTheNearerSection) {
  const std::vector<std::string> known{"model.dropout", "memory.dropout", "model.width"};
  EXPECT_EQ(config::nearest_key("memry.dropout", known), "memory.dropout");
  EXPECT_EQ(config::nearest_key("modl.dropout", known), "model.dropout");
}

TEST(Config, EachProblemIsSaidOnce) {
  config::Problems problems;
  for (int i = 0; i < 2; ++i) problems.add("a.toml:1", "width", "must be > 0");
  problems.add("a.toml:2", "width", "must be > 0");
  EXPECT_EQ(
      problems.lines(),
      (std::vector<std::string>{"a.toml:1: width must be > 0", "a.toml:2: width must be > 0"}));
}

TEST(Config, NamesTheWholeKeyOfAnUnknownSection) {
  EXPECT_EQ(error_of("", {"--modle.width=3", "--modle.num_heads=2", "--nothing.like.it=1"}),
            "--modle.width is not a known key; did you mean model.width?\n"
            "--modle.num_heads is not a known key; did you mean model.num_heads?\n"
            "--nothing.like.it is not a known key");
  // In a file it is one mistake.
  EXPECT_EQ(error_of("[modle]\nwidth = 3\nnum_heads = 2\n[zzz]\n"),
            "a.toml:1: modle is not a known section; did you mean model?\n"
            "a.toml:4: zzz is not a known section");
}

TEST(Config, RejectsWrongTypes) {
  EXPECT_EQ(error_of("model = 3\n"), "a.toml:1: model = 3; must be a section");
  EXPECT_EQ(error_of("[enabled]\n"), "a.toml:1: enabled is a section; must be true or false");
  EXPECT_EQ(error_of("lengths = 3\n"), "a.toml:1: lengths = 3; must be a list");
  EXPECT_EQ(error_of("lengths = [1, 0]\n"), "a.toml:1: lengths[1] = 0; must be > 0");
  EXPECT_EQ(error_of("[model]\nwidth = 64.0\n"),
            "a.toml:2: model.width = 64.0; must be an integer");
  EXPECT_EQ(error_of("[model]\ndecay = nan\n"),
            "a.toml:2: model.decay = nan; must be a finite number, > 0");
  EXPECT_EQ(error_of("[model]\ndecay = inf\n"),
            "a.toml:2: model.decay = inf; must be a finite number, > 0");
  EXPECT_EQ(error_of("note = 2024-01-01\n"), "a.toml:1: dates and times are not used in configs");
  EXPECT_EQ(error_of("", {"--model.width=99999999999999999999"}),
            "--model.width = 99999999999999999999; must be an integer between "
            "-9223372036854775808 and 9223372036854775807");
  EXPECT_EQ(error_of("", {"--model.width=-99999999999999999999"}),
            "--model.width = -99999999999999999999; must be > 0");
  EXPECT_EQ(error_of("[model]\nwidth = 1e20\n"),
            "a.toml:2: model.width = 1e+20; must be an integer between -9223372036854775808 and "
            "9223372036854775807");
  EXPECT_EQ(error_of("", {"--model.width=+-5"}), "--model.width = +-5; must be an integer");
  EXPECT_EQ(error_of("", {"--note=caf\xe9"}), "--note = caf\xe9; must be UTF-8 text");
  EXPECT_EQ(error_of("", {"--model=3"}), "--model = 3; must be a section");
  EXPECT_EQ(error_of("", {"--model.width.x=3"}), "--model.width is a section; must be an integer");
}

TEST(Config, AnOverrideIsAValueOrASection) {
  const std::string expected =
      "model.width is given as a value, --model.width=1, and as a section, --model.width.x=3; give "
      "one of them";
  EXPECT_EQ(error_of("", {"--model.width=1", "--model.width.x=3"}), expected);
  EXPECT_EQ(error_of("", {"--model.width.x=3", "--model.width=1"}), expected);
  // Those of the file are replaced.
  EXPECT_EQ(error_of("[model]\nwidth = 1\n", {"--model.width.x=3"}),
            "--model.width is a section; must be an integer");
}

TEST(Config, RejectsOverridesOfAnotherForm) {
  for (const char* argument : {"model.width=3", "--model.width", "--=3", "--model..width=3"}) {
    EXPECT_EQ(error_of("", {argument}), std::string(argument) + ": expected --section.key=value");
  }
  EXPECT_EQ(error_of("", {""}), "\"\": expected --section.key=value");
  EXPECT_EQ(error_of("", {"second.txt"}),
            "second.txt: expected --section.key=value; an option with several values is given "
            "once for each of them");
}

TEST(Config, ControlCharactersAreShownAsText) {
  EXPECT_EQ(error_of("\"a\\u0000\\u001b[2J\" = 1\n"),
            "a.toml:1: a\\x00\\x1b[2J is not a known key");
  EXPECT_EQ(error_of("", {std::string("\0--a=1", 6)}), "\\x00--a=1: expected --section.key=value");
}

TEST(Config, SyntaxErrorsNameTheLine) {
  EXPECT_TRUE(error_of("enabled = true\nshape = \n").starts_with("a.toml:2:"));
  EXPECT_TRUE(error_of("[model]\nwidth = 1\nwidth = 2\n").starts_with("a.toml:3:"));
  try {
    config::from_json<Example>("{\n\"enabled\": tru\n}", "a.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("a.json:2: not valid JSON")) << error.what();
  }
}

TEST(Config, MissingFilesAndFoldersAreErrors) {
  const test::TempDir folder;
  EXPECT_THROW(config::read_toml<Example>(folder / "none.toml"), Error);
  EXPECT_THROW(config::read_toml<Example>(folder.path()), Error);
  test::write_file(folder / "big.toml", std::string((16 << 20) + 1, '#'));
  EXPECT_THROW(config::read_toml<Example>(folder / "big.toml"), Error);
}

TEST(Config, DeepNestingIsAnErrorNotAStackOverflow) {
  EXPECT_THROW(config::from_json<Example>(std::string(1 << 20, '['), "a.json"), Error);
  EXPECT_THROW(config::parse_toml("x = " + std::string(1 << 20, '['), "a.toml"), Error);
  // Keys of parts, bare and quoted, in headers, lines and inline tables.
  const auto key = [](int64_t parts, const std::string& part) {
    std::string text = part;
    for (int64_t i = 1; i < parts; ++i) text += (i % 2 == 0 ? " .\t" : ".") + part;
    return text;
  };
  for (const char* part : {"a", "'b c'", R"("d\".")"}) {
    const std::string deep = key(100000, part);
    for (const std::string& text :
         {"\n[" + deep + "]", "\n" + deep + " = 1", "\nx = { y = 1, " + deep + " = 2 }"}) {
      EXPECT_EQ(error_of(text), "a.toml:2: a key of more than 16 parts; expected [section.name]");
    }
    EXPECT_EQ(config::parse_toml("[" + key(16, part) + "]", "a.toml").entries.size(), 1U);
  }
  std::string option = "--a";
  for (int i = 0; i < 60000; ++i) option += ".a";
  EXPECT_SAYS(error_of("", {option + "=1"}), "a key of more than 16 parts; expected --section.key");
  // Behind what only looks like a quote.
  const std::string deep = key(100000, "a") + " = 1";
  for (const std::string& text : {"# \"\\\n" + deep + " # \"",
                                  "y = { x = \"\"\"\n' \"\"\", " + deep + ", z = ' ' }",
                                  "y = { x = '''\n\" ''', " + deep + " }  # \"",
                                  "y = { x = \"\"\"\n\\\"\"\"\"\"\", " + deep + ", z = \" \" }"}) {
    EXPECT_EQ(error_of(text), "a.toml:2: a key of more than 16 parts; expected [section.name]");
  }
}

TEST(Config, WhatHoldsManyDotsAndIsNoKeyIsTaken) {
  std::string numbers = "0.5", words = "Go.", name = "a";
  for (int i = 0; i < 100; ++i) numbers += ", 0.5", words += " No.", name += ".b";
  const std::string text = "x = [" + numbers + "] # " + name + " ... " + words + "\n" +   //
                           "y = \"\"\"" + words + "\n\\\"\"\" " + words + "\"\"\"\"\n" +  //
                           "z = '''" + name + "\n' " + words + "'''\n# . a . b " + words +
                           "\nlast = \"" + name + "\"";
  EXPECT_EQ(config::parse_toml(text, "a.toml").entries.size(), 4U);
}

TEST(Config, DescribesEveryKeyWithItsDefault) {
  const auto keys = config::describe<Example>();
  ASSERT_EQ(keys.size(), 14U);
  EXPECT_EQ(keys[1].path, "shape");
  EXPECT_EQ(keys[1].type, "round | square");
  EXPECT_EQ(keys[1].default_value, "\"round\"");
  EXPECT_EQ(keys[2].path, "model.num_heads");
  EXPECT_EQ(keys[2].rule, "> 0");
  EXPECT_EQ(keys[4].default_value, "");
  EXPECT_EQ(keys[9].path, "trials[].name");
  const std::string text = config::help_text(keys);
  EXPECT_NE(text.find("model.num_heads = 4"), std::string::npos);
}

TEST(Config, DifferencesNameKeysAndBothValues) {
  Example before, after;
  EXPECT_TRUE(config::differences(before, after).empty());
  after.shape = Shape::kSquare;
  after.model.num_heads = 8;
  EXPECT_EQ(
      config::differences(before, after),
      (std::vector<std::string>{"shape: \"round\" -> \"square\"", "model.num_heads: 4 -> 8"}));
}

bool same_bits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

void expect_same(const Example& a, const Example& b) {
  RC_ASSERT(a.enabled == b.enabled);
  RC_ASSERT(a.shape == b.shape);
  RC_ASSERT(a.model.num_heads == b.model.num_heads);
  RC_ASSERT(a.model.decay.has_value() == b.model.decay.has_value());
  RC_ASSERT(!a.model.decay || same_bits(*a.model.decay, *b.model.decay));
  RC_ASSERT(same_bits(a.any_number, b.any_number));
  RC_ASSERT(a.lengths == b.lengths);
  RC_ASSERT(a.shapes == b.shapes);
  RC_ASSERT(a.flags == b.flags);
  RC_ASSERT(a.note == b.note);
  RC_ASSERT(a.trials.size() == b.trials.size());
  for (std::size_t i = 0; i < a.trials.size(); ++i) RC_ASSERT(a.trials[i].name == b.trials[i].name);
  RC_ASSERT(a.extra.has_value() == b.extra.has_value());
  RC_ASSERT(!a.extra || same_bits(a.extra->rate, b.extra->rate));
}

Example random_example() {
  Example e;
  e.enabled = *rc::gen::arbitrary<bool>();
  e.shape = *rc::gen::element(Shape::kRound, Shape::kSquare);
  e.model.num_heads = *rc::gen::element<int64_t>(1, 2, 4, 8);
  if (*rc::gen::arbitrary<bool>()) {
    e.model.decay = *rc::gen::map(rc::gen::positive<int64_t>(),
                                  [](int64_t bits) { return std::ldexp(1 + bits * 0x1p-63, -30); });
  }
  const auto bits = *rc::gen::arbitrary<uint64_t>();
  std::memcpy(&e.any_number, &bits, sizeof bits);  // every double, infinities and NaN too
  e.lengths = *rc::gen::container<std::vector<int64_t>>(rc::gen::positive<int64_t>());
  e.shapes =
      *rc::gen::container<std::vector<Shape>>(rc::gen::element(Shape::kRound, Shape::kSquare));
  e.flags = *rc::gen::arbitrary<std::vector<bool>>();
  // Any bytes that are UTF-8: control characters are escaped.
  const auto text = rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127));
  if (*rc::gen::arbitrary<bool>()) e.note = *text;
  const auto count = *rc::gen::inRange(0, 4);
  for (int i = 0; i < count; ++i) e.trials.push_back({*text, 0.25});
  if (*rc::gen::arbitrary<bool>()) e.extra = Trial{"x", std::nextafter(0.3, 1)};
  return e;
}

TEST(Config, WhatIsWrittenReadsBackTheSame) {
  EXPECT_TRUE(rc::check([] {
    const Example example = random_example();
    expect_same(example, config::from_toml<Example>(config::to_toml(example), "a.toml"));
    expect_same(example, config::from_json<Example>(config::to_json(example), "a.json"));
  }));
}

TEST(Config, MutatedFilesNeverCrash) {
  Example full;
  full.note = "text";
  full.extra = Trial{"x", 0.5};
  full.trials = {{"a", 0.1}, {"b", 0.2}};
  full.model.decay = 3;
  const std::string toml = config::to_toml(full);
  const std::string json = config::to_json(full);
  const std::vector<std::string> words = {
      "[model]", "[[trials]]", "\"\"\"", "num_heads", "= {", "1979-05-27"};
  const auto survives = [](const auto& read) {
    try {
      const Example value = read();
      config::from_toml<Example>(config::to_toml(value), "b.toml");  // what was read can be written
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  };
  test::repeat_for(8, 8000, [&](uint64_t i) {
    SCOPED_TRACE(i);
    test::Mutator mutator(i);
    const std::string text = mutator.mutate(i % 2 ? toml : json, words);
    survives([&] { return config::from_toml<Example>(text, "a.toml"); });
    survives([&] { return config::from_json<Example>(text, "a.json"); });
    const std::vector<std::string> overrides{mutator.mutate("--model.num_heads=3", words)};
    survives([&] { return config::from_toml<Example>("", "a.toml", overrides); });
  });
}

TEST(Config, WhatATerminalObeysIsShownEscaped) {
  EXPECT_EQ(config::printable("a\x1b[31m\n\x7f"), "a\\x1b[31m\\x0a\\x7f");
  EXPECT_EQ(config::printable("\u0080\u009b\u009f"), "\\u0080\\u009b\\u009f");
  EXPECT_EQ(config::printable("\u200f\u2028\u202a\u202e\u2066\u2069\u061c"),
            "\\u200f\\u2028\\u202a\\u202e\\u2066\\u2069\\u061c");
  const std::string plain = "fox é ü € “x” … – \u00a0 שלום 狐 \xf0\x9f\xa6\x8a";
  EXPECT_EQ(config::printable(plain), plain);
  EXPECT_EQ(config::printable("\xe9\xc2\xe2\x80"), "\xe9\xc2\xe2\\x80");
}

}  // namespace
