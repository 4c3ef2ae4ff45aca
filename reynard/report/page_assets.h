#pragma once
// The style sheet of the page and the script that draws its figures.

#include <string_view>

namespace reynard::report {

extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace reynard::report
