#include "reynard/tensor/installation.h"

#include <dlfcn.h>
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

}  // namespace reynard::tensor
