#pragma once
// What a chat template says, as a tree.

#include "reynard/jinja/value.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::jinja {

struct Expression {
  enum class Kind {
    kLiteral,
    kName,
    kList,
    kMap,        // keys and values by turns
    kAttribute,  // a.name
    kItem,       // a[b]
    kSlice,      // a[b:c:d]; absent ones are null
    kCall,       // name(arguments)
    kMethod,     // a.name(arguments)
    kFilter,     // a | name(arguments)
    kTest,       // a is name(arguments)
    kUnary,      // name: not, -, +
    kBinary,     // name: the operator
    kChoice,     // b if a else c
  };
  Kind kind = Kind::kLiteral;
  int64_t line = 0;
  int64_t height = 0;  // of the tree under it
  std::string name = {};
  Value literal = {};
  std::vector<std::unique_ptr<Expression>> operands = {};  // the arguments last
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named = {};  // name=argument
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct Statement {
  enum class Kind { kText, kPrint, kSet, kSetBlock, kBlock, kFor, kIf, kMacro, kBreak, kContinue };
  Kind kind = Kind::kText;
  int64_t line = 0;
  std::string text = {};                     // text; the macro's name
  std::vector<std::string> names = {};       // targets of set and for, a macro's parameters
  ExpressionPtr value = {};                  // printed, set, iterated over, asked
  ExpressionPtr condition = {};              // of a for
  std::vector<ExpressionPtr> defaults = {};  // of a macro's parameters; null where there is none
  std::vector<Statement> body = {}, otherwise = {};
};

// Throws reynard::Error "line 3: ..." naming what is wrong or not supported.
std::vector<Statement> parse(std::string_view source);

}  // namespace reynard::jinja
