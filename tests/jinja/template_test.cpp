// The template language by itself, and templates that want to do harm.

#include "reynard/jinja/template.h"

#include "reynard/tensor/error.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace reynard::jinja {
namespace {

std::string render(const std::string& source, const Value::Map& variables = {}) {
  return Template(source).render(variables);
}

void expect_error(const std::string& source, const std::string& part) {
  try {
    ADD_FAILURE() << source << " gives " << render(source);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Jinja, ValuesAndOperators) {
  EXPECT_EQ(render("{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1.5 * 2 }}"),
            "7 3 2 3.5 3.0");
  EXPECT_EQ(render("{{ 'a' ~ 1 ~ 1 }}{{ 'b' + \"c\\n\" }}"), "a11bc\n");
  EXPECT_EQ(render("{{ not 1 == 2 and 'b' in 'abc' }} {{ 3 not in [1, 2] }}"), "True True");
  EXPECT_EQ(render("{{ none }} {{ missing }}| {{ true if 0 else 'no' }}"), "None | no");
  EXPECT_EQ(render("{{ [1, 2, 3][-1] }} {{ [1, 2, 3][1:] | join(',') }} {{ 'üab'[::-1] }}"),
            "3 2,3 baü");
  EXPECT_EQ(render("{{ {'a': {'b': 5}}.a['b'] }} {{ 'x' is string }} {{ x is defined }}"),
            "5 True False");
  EXPECT_EQ(render("{{ 'a</t>b'.split('</t>')[-1].lstrip() | upper | trim }}"), "B");
  EXPECT_EQ(render("{{ {'k': [1, 'ü\"'], 'n': none} | tojson }}"),
            "{\"k\": [1, \"ü\\\"\"], \"n\": null}");
  EXPECT_EQ(render("{{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ -7.5 // 2 }}"), "0.5 -0.5 -4.0");
  EXPECT_EQ(render("{{ 100000000.0 * 100000000.0 }}"), "1e+16");
  EXPECT_EQ(render("{{ 'y' if namespace() else 'n' }}{{ 'y' if {} else 'n' }}"), "yn");
}

// What 64 bits do not hold.
TEST(Jinja, IntegersAtTheirLimits) {
  const std::string least = "(-9223372036854775807 - 1)";
  EXPECT_EQ(render("{{ " + least + " % -1 }}"), "0");
  expect_error("{{ " + least + " // -1 }}", "a number is too large");
  EXPECT_EQ(render("{{ 'abc'[1::9223372036854775807] }}"), "b");
  EXPECT_EQ(render("{{ 'abc'[1::-9223372036854775807] }}"), "b");
}

// As Transformers renders them.
TEST(Jinja, FiltersAndMethodsAreThoseOfTransformers) {
  EXPECT_EQ(render("{{ '\u3000a\u2003b\x1c\u0085c\u00a0'.split() | join('|') }}"), "a|b|c");
  EXPECT_EQ(render("[{{ '\u3000a\u00a0' | trim }}] [{{ ' \u2029é\n'.rstrip() }}]"),
            "[a] [ \u2029é]");
  EXPECT_EQ(render("{{ 'éaé'.strip('é') }} {{ 'a b  c '.split(none, 1) | join('|') }}|"),
            "a a|b  c |");
  EXPECT_EQ(render("{{ ' 42 ' | int }} {{ 'z' | int(7) }} {{ '42.9' | int }} {{ none | int(3) }} "
                   "{{ '1e3' | int }} {{ '+4' | int }} {{ '+-4' | int }} {{ 'inf' | int }}"),
            "42 7 42 3 1000 4 0 0");
  EXPECT_EQ(render("{{ ['a', 'A', 'b', 1] | unique | join(',') }} "
                   "{% for k, v in {'B': 1, 'a': 2} | dictsort %}{{ k }}{% endfor %}"),
            "a,b,1 aB");
  EXPECT_EQ(render("{{ '' | default('x') }}|{{ '' | default('x', true) }}|"
                   "{{ '' | default('x', boolean=true) }}|{{ y | default('x') }}"),
            "|x|x|x");
  EXPECT_EQ(render("{{ 'a b c'.split(' ', -1) | join('|') }} {{ {'a': 1}.get('b') }} "
                   "{{ {'a': 1}.get('b', 2) }}"),
            "a|b|c None 2");
  EXPECT_EQ(render("{{ {'a': 'é'} | tojson(4) }} {{ ['é😀'] | tojson(true, 1) }} "
                   "{{ [1, {}] | tojson(indent=1) }}"),
            R"({"a": "\u00e9"} [)"
            "\n"
            R"( "\u00e9\ud83d\ude00")"
            "\n] [\n 1,\n {}\n]");
}

// What Jinja2 3.1 writes, of letters and digits of any script; the rest is refused.
TEST(Jinja, LettersAndDigitsOfAllScriptsAreThoseOfPython) {
  EXPECT_EQ(render("{{ ['É', 'é', 'e'] | unique | join(',') }} "
                   "{% for k, v in {'Ö': 1, 'ä': 2, 'Z': 3} | dictsort %}{{ k }}{% endfor %}"),
            "É,e ZäÖ");
  EXPECT_EQ(render("{{ 'éß ﬁ ŉ ᾀ ж İ ẞ' | upper }} {{ 'ÉЖ ẞ'.lower() }}"),
            "ÉSS FI ʼN ἈΙ Ж İ ẞ éж ß");
  EXPECT_EQ(render("{{ 'éCOLE ÉTÉ' | capitalize }} {{ \"l'éTÉ ǆ x2y ⅷ你é\".title() }}"),
            "École été L'Été ǅ X2Y Ⅷ你É");
  EXPECT_EQ(render("{{ '１２' | int }} {{ '٣' | int }} {{ '-१_०' | int }} {{ '𝟗.５' | int }} "
                   "{{ '²' | int(7) }}"),
            "12 3 -10 9 7");
  expect_error("{{ 'ΌΣ' | lower }}", "lower: the case of \"Σ\" is not supported");
  expect_error("{{ ['İ'] | unique | list }}", "lower: the case of \"İ\"");
  expect_error("{{ 'ß' | capitalize }}", "capitalize: the case of \"ß\"");
  expect_error("{{ 'aªb'.title() }}", "title: the case of \"ª\"");
  expect_error("{{ missing | int(4) }}", "int: what is undefined has no number");
}

// int() and float() of Python, as Jinja2 calls them: one underscore between digits is left out.
TEST(Jinja, IntReadsNumbersAsPythonDoes) {
  const auto as_int = [](const std::string& text) {
    return render("{{ '" + text + "' | int(7) }}");
  };
  for (const char* ten :
       {"10", " 10 ", "+10", "1_0", "+1_0", "0_010", "1_0.7", "10.5_0", "1e0_1"}) {
    EXPECT_EQ(as_int(ten), "10") << ten;
  }
  EXPECT_EQ(as_int("-1_000_000"), "-1000000");
  EXPECT_EQ(as_int("3.7"), "3");
  EXPECT_EQ(as_int("-3.7"), "-3");
  EXPECT_EQ(as_int("5."), "5");
  EXPECT_EQ(as_int(".5"), "0");
  EXPECT_EQ(as_int("1e3"), "1000");
  for (const char* none : {"",
                           "_1",
                           "1_",
                           "1__0",
                           "+_1",
                           "1_.5",
                           "1._5",
                           "1_e3",
                           "1e_3",
                           "- 1",
                           "1 0",
                           "0x10",
                           "in_f",
                           "nan",
                           "1e400"}) {
    EXPECT_EQ(as_int(none), "7") << none;
  }
  EXPECT_EQ(render("{{ '1__0' | int }} {{ '1_' | int }}"), "0 0");
}

TEST(Jinja, WhatWouldBeAnotherTextIsRefused) {
  expect_error("{{ x | tojson(separators=(',', ':')) }}",
               "line 1: tojson: the argument \"separators\" is not supported; expected "
               "ensure_ascii, indent");
  expect_error("{{ [x] | join(',', 'name') }}",
               "join: the argument 2 is not supported; expected d");
  expect_error("{{ [] | unique(true) }}", "unique: the argument 1 is not supported; expected none");
  expect_error("{{ 'aa'.replace('a', 'b', 1) }}", "replace: the argument 3 is not supported");
  expect_error("{{ 1 < 2 == true }}", "line 1: \"==\" compares a comparison; put one of them");
  expect_error("{{ 1 in [1] not in [true] }}", "\"not\" compares a comparison");
  EXPECT_EQ(render("{{ (1 < 2) == true }}"), "True");
}

TEST(Jinja, WhiteSpaceGoesAsInTransformers) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a  {%- if true -%}  b  {%- endif -%}  c"), "abc");
  EXPECT_EQ(render("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(render("{# note #}\nx{#- y -#} z"), "xz");
  EXPECT_EQ(render("  {{ 'kept' }}\n"), "  kept");
  EXPECT_EQ(render("a\r\nb"), "a\nb");
}

// Python's str.isspace: not ASCII's blanks alone. The texts are those of Transformers 5.
TEST(Jinja, WhiteSpaceIsThatOfAllScripts) {
  EXPECT_EQ(render("a\u3000{{- 1 }} \n "), "a1 \n ");
  EXPECT_EQ(render("{{ 1 -}}\u3000\u2028\x1c{% if true %}b{% endif %}"), "1b");
  EXPECT_EQ(render("\t{% for s in ['', 'b'][1:] %}\n  \u3000{{- s[0] -}}\u00a0\n{% endfor %}|"),
            "b|");
  EXPECT_EQ(render("a{#- x -#}\u3000b{%- if true -%}\x1d\u0085\u1680c{% endif %}"), "abc");
  EXPECT_EQ(render("\f{% if true %}a{% endif %}"), "a");
  EXPECT_EQ(render("a\n\u3000\x1f{% if true %}b{% endif %}"), "a\nb");
  EXPECT_EQ(render("{%\u00a0if\u3000true\u2029%}x{%endif\u0085%}"), "x");
  // What is no white space, or is not asked to go, stays.
  EXPECT_EQ(render("a\u200b{{- 1 }}\n\u3000{{ 2 }}"), "a\u200b1\n\u30002");
  EXPECT_EQ(render("\u00a0{%+ if true %}\u2028\nb{% endif %}"), "\u00a0\u2028\nb");
  // So do bytes that are no character.
  EXPECT_EQ(render("\x80{{- 'z' -}}\xe3\x80"), "\x80z\xe3\x80");
}

TEST(Jinja, StatementsAndScopes) {
  EXPECT_EQ(render("{% for a, b in [(1, 2), (3, 4)] %}{{ loop.index }}{{ a }}{{ b }};"
                   "{% else %}none{% endfor %}"),
            "112;234;");
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [5] %}{% set x = i %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(render("{% set n = namespace(x=1) %}{% for i in [5] %}{% set n.x = i %}{% endfor %}"
                   "{{ n.x }}"),
            "5");
  EXPECT_EQ(render("{% for i in range(9) if i is odd %}{% if i == 5 %}{% break %}{% endif %}"
                   "{{ i }}{% if loop.last %}!{% endif %}{% endfor %}"),
            "13");
  EXPECT_EQ(
      render("{% macro m(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m(2, b=3) }}"),
      "<1x><23>");
  EXPECT_EQ(render("{% set t %}in{{ 1 }}{% endset %}[{{ t }}]"), "[in1]");
}

TEST(Jinja, ConditionsAndTestsAreRefusedAsByJinja2) {
  expect_error("{% if a if b else c %}x{% endif %}",
               "line 1: \"if\" is unexpected; expected \"%}\"");
  expect_error("{% if 0 %}\n{% elif 1 if 1 else 0 %}x{% endif %}", "line 2: \"if\" is unexpected");
  EXPECT_EQ(render("{% if (1 if 1 else 0) %}x{% endif %}"), "x");
  expect_error("{{ x is string is eq(1) }}",
               "line 1: \"is\" tests a test; put one of them in brackets");
  expect_error("{{ 1 is eq is string }}", "\"is\" tests a test");
  EXPECT_EQ(render("{{ (1 is string) is eq(false) }} {{ 1 is eq(1) is eq true }}"), "True True");
}

// The results are Jinja2's.
TEST(Jinja, MacrosSeeTheirParametersAndWhatIsAroundThem) {
  EXPECT_EQ(render("{% macro turn(role, name=role) %}[{{ name }}]{% endmacro %}{{ turn('user') }}"),
            "[user]");
  EXPECT_EQ(render("{% macro m(a=b, b=1) %}[{{ a }}{{ b }}]{% endmacro %}{% set b = 7 %}"
                   "{{ m() }}{{ m(b=5) }}"),
            "[1][55]");
  EXPECT_EQ(render("{% macro m(a='d') %}[{{ a }}]{% endmacro %}{{ m(nope) }}{{ m() }}"), "[][d]");
  EXPECT_EQ(render("{% for x in [1, 2] %}{% macro h() %}{{ x }}{{ y }}{{ loop.index }}"
                   "{% endmacro %}{% set y = x * 10 %}{{ h() }};{% endfor %}"),
            "1101;2202;");
  EXPECT_EQ(render("{% macro o(p) %}{% macro i(q) %}{{ p }}{{ q }}{% endmacro %}{{ i(2) }}"
                   "{% endmacro %}{{ o(1) }}"),
            "12");
  EXPECT_EQ(render("{% macro run(f) %}{{ f() }}{% endmacro %}{% for x in [1, 2] %}"
                   "{% macro h() %}{{ x }}{% endmacro %}{{ run(h) }}{% endfor %}"),
            "12");
  EXPECT_EQ(render("{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}"),
            "2");
  expect_error("{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}",
               "line 2: the macro m takes no argument 2");
  expect_error("{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "m takes no argument \"b\"");
  expect_error("{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "m takes no argument \"a\"");
  expect_error(
      "{% set n = namespace() %}{% for x in [1] %}{% macro h() %}{{ x }}{% endmacro %}"
      "{% set n.f = h %}{% endfor %}{% set g = n.f %}{{ g() }}",
      "the macro h belongs to a part of the template that has ended");
}

// Only calls inside each other are limited.
TEST(Jinja, MacrosAreCalledManyTimes) {
  EXPECT_EQ(render("{% macro m() %}x{% endmacro %}{% for i in range(100) %}{{ m() }}{% endfor %}"),
            std::string(100, 'x'));
}

TEST(Jinja, MapsHaveTextsForKeysAndEachOnce) {
  EXPECT_EQ(render("{{ {'a': 1, 'b': 3, 'a': 2} | tojson }}"), R"({"a": 2, "b": 3})");
  EXPECT_EQ(render("{{ dict({'a': 1}, a=2).a }}{{ namespace({'a': 1}, a=2).a }}"), "22");
  expect_error("{{ dict([['a', 1]]) }}", "dict: expected a map");
  expect_error("{{ namespace(missing) }}", "namespace: expected a map");
  expect_error("{% set x = 1 %}\n{{ {0: 'A'}[0] }}",
               "line 2: \"0\" is a key of a map; only strings");
  expect_error("{{ {none: 1} | length }}", "line 1: \"none\" is a key of a map; only strings");
  expect_error("{% set x = 1 %}{% set m = {x: 'A'} %}", "a key of a map is an integer");
}

TEST(Jinja, BlocksHaveScopesOfTheirOwn) {
  EXPECT_EQ(render("{% set x %}{% set y = 5 %}{{ y }}{% endset %}{{ x }}{{ y }}"), "5");
  EXPECT_EQ(render("{% for x in [1, 2] %}{% generation %}{% set y = x %}{{ y }}{% endgeneration %}"
                   "{{ y }}{% endfor %}"),
            "12");
  EXPECT_EQ(render("{% for x in [] %}{% else %}{% set y = 5 %}{% endfor %}[{{ y }}]"), "[]");
  EXPECT_EQ(render("{% for a in [1] %}{% for b in [1] %}{{ loop.depth }}{{ loop.depth0 }}"
                   "{% endfor %}{% endfor %}"),
            "10");
  EXPECT_EQ(render("{% for x in [1] %}{% break %}{% else %}E{% endfor %}"
                   "{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}F"
                   "{% endfor %}"),
            "E");
  expect_error("{% for x in [1] %}\n{{ loop.cycle }}{% endfor %}",
               "line 2: \"cycle\" is no supported name of loop");
  expect_error("a\n{% break %}b", "line 2: \"break\" is outside of a loop");
  EXPECT_EQ(render("{% for x in [1, 2] %}{% for y in [] %}{% else %}{% break %}{% endfor %}{{ x }}"
                   "{% endfor %}"),
            "");
  expect_error("{% for x in [1] %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}",
               "\"continue\" is outside of a loop");
}

TEST(Jinja, StringsHaveTheEscapesOfPython) {
  EXPECT_EQ(render("{{ 'a\\\nb' }}{{ 'a\\\r\nb' }}"), "abab");
  EXPECT_EQ(render(R"({{ '\U0001F600\101\60x\q\/\u00e9\x41' }})"), "😀A0x\\q\\/éA");
  expect_error(R"({{ '\N{DASH}' }})", "line 1: the escape \"\\\\N\" is not supported");
  expect_error(R"({{ '\ud83d\ude00' }})", "line 1: an escape is no character");
  expect_error(R"({{ '\U00110000' }})", "line 1: an escape is no character");
}

TEST(Jinja, ErrorsSayWhereAndWhat) {
  expect_error("a\n{{ x | nonsense }}", "line 2: \"nonsense\" is no supported filter");
  expect_error("{{ x.y.z }}", "line 1: \"y\" of what is undefined");
  expect_error("{% if x %}", "\"endif\" is missing");
  expect_error("{{ 1 / 0 }}", "division by 0");
  expect_error("{{ raise_exception('no ' ~ 1) }}", "line 1: no 1");
  expect_error("{{ 'abc", "line 1: the string has no end");
  expect_error("{{ 9223372036854775807 + 1 }}", "too large");
  expect_error("{{ [] }}", "a list cannot be written as text");
}

// Templates are files of others.
TEST(Jinja, HostileTemplatesEnd) {
  expect_error("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
               "takes too long");
  for (const char* work : {"{{ 1 in l }}",
                           "{{ l == l }}",
                           "{{ l | first }}",
                           "{{ ','.join(l) }}",
                           "{{ l[:1] | length }}",
                           "{{ l is eq(l) }}",
                           "{{ l | select('odd') | length }}",
                           "{% for x in l %}{% break %}{% endfor %}"}) {
    expect_error(std::string("{% set l = range(0, 99999, 2) %}{% for i in range(9999) %}") + work +
                     "{% endfor %}",
                 "takes too long");
  }
  std::string map = "{";
  for (int i = 0; i < 2000; ++i) map += fmt::format("'{}': {}, ", i, i);
  for (const char* copy : {"dict(m)", "namespace(m)"}) {
    expect_error(fmt::format("{{% set m = {}}} %}}{{% for i in range(9999) %}}{{% set x = {} %}}"
                             "{{% endfor %}}",
                             map,
                             copy),
                 "takes too long");
  }
  // Every name is compared with all that are there.
  std::string names;
  for (int i = 0; i < 2000; ++i) names += fmt::format(", n{}={}", i, i);
  expect_error(fmt::format("{{% set m = {}}} %}}{{% for i in range(80) %}}{{% set x = dict(m{}) %}}"
                           "{{% endfor %}}",
                           map,
                           names),
               "takes too long");
  expect_error(
      "{% set n = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}"
      "{% set n.s = n.s + n.s %}{% endfor %}",
      "too long");
  const std::string megabyte =
      "{% set n = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(16) %}"
      "{% set n.s = n.s + n.s %}{% endfor %}";
  expect_error(megabyte + "{{ n.s | replace('x', n.s) }}", "too long");
  expect_error(megabyte + "{{ range(9999) | join(n.s) }}", "too long");
  expect_error("{{ range(99999) | unique | length }}", "more than 4096 different items");
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too often");
  expect_error("{% set n = namespace() %}{% set n.l = [n] %}", "namespace");
  expect_error(
      "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = [n.l] %}"
      "{% endfor %}",
      "too deep");
  expect_error("{{ " + std::string(90'000, '(') + "1" + std::string(90'000, ')') + " }}", "levels");
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  expect_error(chain + " }}", "levels");
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if true %}";
  expect_error(blocks, "levels");
}

// n.s: a text of 2^doublings letters.
std::string long_text(int doublings) {
  return fmt::format(
      "{{% set n = namespace(s='x', l=['x'], m=['x']) %}}{{% for i in range({}) %}}"
      "{{% set n.s = n.s + n.s %}}{{% endfor %}}",
      doublings);
}

// Values that are shared are small until something goes through all that they stand for.
TEST(Jinja, HostileTemplatesCannotUnfoldWhatIsShared) {
  const std::string lists = long_text(0) +
                            "{% for i in range(45) %}{% set n.l = [n.l, n.l] %}"
                            "{% set n.m = [n.m, n.m] %}{% endfor %}";
  for (const char* work : {"n.l | tojson | length", "n.l == n.m", "n.l in [n.m]", "n.l is eq(n.m)"})
    expect_error(fmt::format("{}{{{{ {} }}}}", lists, work), "takes too long");
  const std::string texts = long_text(20) +
                            "{% set n.l = [n.s] %}{% for i in range(14) %}"
                            "{% set n.l = n.l + n.l %}{% endfor %}";
  expect_error(texts + "{{ n.l | length }}", "takes too long");
}

TEST(Jinja, HostileTemplatesSpendWhatFiltersMakeOfEachItem) {
  const std::string texts = long_text(20) + "{% set items = range(1, 50000) %}";
  for (const char* work : {"items | map('replace', '1', n.s) | list | length",
                           "items | map('string') | select('in', n.s) | list | length",
                           "(n.s | replace('x', 'xx,')).split(',') | length",
                           "(n.s | replace('x', 'xx ')).split() | length",
                           "n.s | replace('x', 'xx') | list | length"}) {
    expect_error(fmt::format("{}{{{{ {} }}}}", texts, work), "takes too long");
  }
  expect_error(
      long_text(16) +
          "{% set t %}{% for i in range(1000, 4000) %}{{ n.s ~ i }},{% endfor %}{% endset %}"
          "{{ t.split(',') | unique | list | length }}",
      "takes too long");
}

TEST(Jinja, LongTextsAreSearchedInLinearTime) {
  const std::string text = long_text(20);
  EXPECT_EQ(render(text + "{{ (n.s + 'y') in (n.s + n.s) }}"), "False");
  EXPECT_EQ(render(text + "{{ ('y' + n.s) in (n.s + n.s + 'y' + n.s) }}"), "True");
  EXPECT_EQ(render(text + "{{ (n.s + n.s) | replace(n.s + 'y', '') | length }}"), "2097152");
  EXPECT_EQ(render(text + "{{ (n.s + n.s).split(n.s + 'y') | length }}"), "1");
  EXPECT_EQ(render(text + "{{ n.s.strip(n.s | replace('x', 'y') + 'x') }}"), "");
}

TEST(Jinja, CharactersOfALongTextAreCountedAndCutOut) {
  const std::string text = long_text(18) + "{% set t = n.s + '\u00e4\u20ac' %}";
  EXPECT_EQ(render(text + "{{ t | length }}{{ t[-1] }}{{ t[262144] }}{{ t[262146] }}"),
            "262146\u20ac\u00e4");
  EXPECT_EQ(render(text + "{{ t[-3:] }} {{ t[:-262150:-1][:2] }} {{ t[262143:262145] }}"),
            "x\u00e4\u20ac \u20ac\u00e4 x\u00e4");
}

TEST(Jinja, DamagedTemplatesAreErrorsAtMost) {
  const Value::Map user = {{"role", "user"}, {"content", " one "}};
  const Value::Map assistant = {{"role", "assistant"}, {"content", "two\n"}};
  const Value::Map variables = {{"messages", Value::List{user, assistant, user}},
                                {"add_generation_prompt", true},
                                {"bos_token", "<s>"},
                                {"eos_token", "</s>"}};
  for (const char* name : {"qwen3.jinja", "phi-3.5.jinja"}) {
    const std::string whole =
        test::read_file(std::string(REYNARD_SOURCE_DIR "/tests/generation/chat_templates/") + name);
    EXPECT_NE(render(whole, variables).find("one"), std::string::npos);
    test::repeat_for(1, 1000, [&](uint64_t attempt) {
      const std::string damaged =
          test::Mutator(attempt).mutate(whole, {"{%", "%}", "{{", "}}", "[", "|", "-", "range("});
      try {
        render(damaged, variables);
      } catch (const Error&) {
      }
    });
  }
}

}  // namespace
}  // namespace reynard::jinja
