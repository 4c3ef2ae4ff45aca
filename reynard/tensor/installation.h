#pragma once
// Where the files lie that are not compiled into the program: beside libreynard.so, wherever that
// is, so that an installed tree can be moved.

#include <string>

namespace reynard::tensor {

// The folder of libreynard.so.
std::string library_folder();

// A file of the project that is read at run time, such as "python/figures.py": that of the
// installed tree (share/ beside the library's folder), else that of the source tree it was built
// from.
std::string project_file(const std::string& path);

// A program or file that the user may name in the environment: what the variable says, or
// `otherwise` where it says nothing.
std::string named_in_environment(const char* variable, const std::string& otherwise);

}  // namespace reynard::tensor
