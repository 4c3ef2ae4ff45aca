#pragma once
// Parts of the page that are words and tables: verdict, text samples, speed and memory, commands.
// Each gives HTML in which everything that came from outside is escaped.

#include "reynard/report/figure.h"
#include "reynard/report/verdict.h"

#include <string>

namespace reynard::report {

// One plain sentence under the title: what was trained on what.
std::string lead_text(const Runs& runs);

std::string verdict_section(const Runs& runs, const VerdictOptions& options);

// Empty when no run has a text sample.
std::string text_samples(const Runs& runs);

std::string speed_section(const Runs& runs);

// command: with which the page was made; may be empty.
std::string repeat_section(const Runs& runs, const std::string& command);

}  // namespace reynard::report
