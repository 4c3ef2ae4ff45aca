#pragma once
// Run folders with every kind of result, made by hand, and what tests read out of the page that is
// made of them.

#include "reynard/report/figure.h"
#include "tests/support/files.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::test {

// What a page must not take for HTML.
inline constexpr const char* kEvil = "</script><img src=x onerror=alert(1)>'\"&";

// gap: what copy accuracy is above LM accuracy at the shortest length.
void write_report_run(const std::filesystem::path& folder,
                      const std::string& name,
                      double loss,
                      double gap);
// A run "fox" that copies and "transformer" that does not.
report::Runs two_report_runs(const TempDir& folder);

// The specifications that a page embeds, by figure.
std::map<std::string, nlohmann::json> specs_of(const std::string& page);
// All rows of data anywhere in a specification that have a key.
std::vector<nlohmann::json> rows_with(const nlohmann::json& spec, const std::string& key);
// What is marked in a figure, in its order.
std::vector<std::string> marks_of(const nlohmann::json& spec);

}  // namespace reynard::test
