#pragma once
// Results as a table for spreadsheets (RFC 4180).

#include "reynard/report/figure.h"

#include <string>
#include <string_view>

namespace reynard::report {

// The line of names, with which every such table begins.
inline constexpr std::string_view kCsvHeader = "run,task,metric,value,standard_error,unit\r\n";

// One line per run and number among a task's metrics; those of an object are called OBJECT/KEY;
// lists and ids of tokens are left out. standard_error and unit are empty where the results name
// none.
std::string csv(const Runs& runs);

}  // namespace reynard::report
