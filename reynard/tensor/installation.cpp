#include "reynard/tensor/installation.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace reynard::tensor {

namespace fs = std::filesystem;

std::string library_folder() {
  Dl_info info = {};
  dladdr(reinterpret_cast<const void*>(&library_folder), &info);
  return fs::absolute(info.dli_fname).parent_path();
}

std::string project_file(const std::string& path) {
  const fs::path installed = fs::path(library_folder()).parent_path() / "share" / path;
  return fs::exists(installed) ? installed : fs::path(REYNARD_SOURCE_FOLDER) / path;
}

std::string named_in_environment(const char* variable, const std::string& otherwise) {
  const char* const named = std::getenv(variable);
  return named != nullptr && *named != '\0' ? named : otherwise;
}

}  // namespace reynard::tensor
