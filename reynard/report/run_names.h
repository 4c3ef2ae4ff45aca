#pragma once
// Names of runs as pages show them: those of a sweep are lists of settings ("a.b=1,seed=0"), of
// which only what differs tells them apart.

#include <string>
#include <vector>

namespace reynard::report {

struct ShortNames {
  std::vector<std::string> names;
  std::string shared;  // settings that were left out, as written; empty: none
};
// Of names that begin with a setting, where there are two or more: without the settings that they
// all have, and of a key only its last part where that is clear ("optimizer.learning_rate=1" ->
// "learning_rate=1"). What follows in parentheses stays. Other names are as they were, and all are
// where short ones would not be unique.
ShortNames short_names(const std::vector<std::string>& names);

// Lines of at most `most` characters, broken behind one of " ,/:_" where there is one.
std::vector<std::string> wrapped(const std::string& text, size_t most);

}  // namespace reynard::report
