#pragma once
// Reads the expressions of a template, by Jinja's ranks of operators.

#include "reynard/jinja/syntax.h"
#include "reynard/jinja/token_reader.h"

namespace reynard::jinja {

// Each reads as far as the expression goes. Throw reynard::Error "line 3: ...".
ExpressionPtr parse_expression(TokenReader& reader);
// Without "b if a else c": what a for goes through and an if asks.
ExpressionPtr parse_operand(TokenReader& reader);
// a, b, c is a list.
ExpressionPtr parse_tuple(TokenReader& reader);

}  // namespace reynard::jinja
