#pragma once
// Runs chat templates as models publish them: the part of Jinja that such templates use, with the
// white space rules, values and functions that `transformers` gives them. What is not supported is
// an error that names it. Templates are files of others, so steps and memory are bounded.

#include "reynard/jinja/syntax.h"

#include <string>
#include <string_view>
#include <vector>

namespace reynard::jinja {

class Template {
 public:
  // Throws reynard::Error "line 3: ..." for what is no template or not supported.
  explicit Template(std::string_view source) : statements_(parse(source)) {}

  // The text, with these variables. Throws reynard::Error for what the template refuses
  // (raise_exception) or cannot do with them.
  std::string render(const Value::Map& variables) const;

 private:
  std::vector<Statement> statements_;
};

}  // namespace reynard::jinja
