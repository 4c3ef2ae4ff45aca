#include "cli/output_file.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace reynard::cli {

void check_output(std::string_view command,
                  std::string_view file,
                  std::string_view beginning,
                  std::string_view what,
                  std::string_view flag) {
  const auto begins_so = [&](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::string text(beginning.size(), '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(in.gcount()));
    return text == beginning;
  };
  check_output(command, file, begins_so, what, flag);
}

void check_output(std::string_view command,
                  std::string_view file,
                  const std::function<bool(const std::filesystem::path&)>& is_one,
                  std::string_view what,
                  std::string_view flag) {
  // What is no regular file is refused where it is written.
  if (!std::filesystem::is_regular_file(file)) return;
  if (std::filesystem::is_empty(file) || is_one(file)) return;
  throw Error(
      fmt::format("{}: {} {}: the file exists and is not {}; remove it or give another name",
                  command,
                  flag,
                  file,
                  what));
}

void check_output_page(std::string_view command, std::string_view file) {
  check_output(command, file, "<!doctype html>", "a page");
}

std::filesystem::path end_of_links(std::filesystem::path file) {
  constexpr int kMostLinks = 40;  // as the system follows
  std::error_code none;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(file, none); ++i) {
    file = file.parent_path() / std::filesystem::read_symlink(file, none);
  }
  return file;
}

void write_output(const std::filesystem::path& file, std::string_view bytes) {
  const std::filesystem::path end = end_of_links(file);
  if (end.has_parent_path()) std::filesystem::create_directories(end.parent_path());
  checkpoint::write_atomically(end, bytes);
}

}  // namespace reynard::cli
