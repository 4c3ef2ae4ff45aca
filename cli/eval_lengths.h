#pragma once
// Flags of `reynard eval` that stand for the lengths of many tasks at once.

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::cli {

// --extrapolate 4: every task that has lengths at 1, 2 and 4 times the training length, those that
// were given ones of their own left alone. 0 times: as they are.
std::vector<std::string> with_extrapolation(std::vector<std::string> overrides,
                                            int64_t times,
                                            int64_t train_length);

// --published-lengths: the lengths that each task was published with, for those that were not given
// their own.
std::vector<std::string> with_published_lengths(std::vector<std::string> overrides);

// --length stands for the length of every task that has one and was not given its own.
std::vector<std::string> with_length(std::vector<std::string> overrides, int64_t length);

}  // namespace reynard::cli
