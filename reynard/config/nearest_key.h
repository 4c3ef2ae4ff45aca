#pragma once
// What somebody who wrote an unknown key meant: a name a few slips away. For keys of config files
// and options of the command line; it does not correct anything.

#include <string>
#include <vector>

namespace reynard::config {

// The known key that was probably meant; empty when none is near.
std::string nearest_key(const std::string& path, const std::vector<std::string>& known);

}  // namespace reynard::config
