#pragma once
// What stands between results and the page: names, commands and texts come from outside and may
// hold anything.

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace reynard::report {

// Text as HTML content or attribute value: & < > " ' are escaped, bytes that are not UTF-8 become
// U+FFFD, control characters other than newline and tab are shown as U+2400 pictures.
std::string html(std::string_view text);

// JSON that is safe inside a <script> element: no "</" and no "<!--".
std::string script_json(const nlohmann::json& json);

// One word of a command line, quoted where a shell needs it.
std::string shell_word(std::string_view word);

}  // namespace reynard::report
