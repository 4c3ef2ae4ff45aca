#pragma once
// A file that a command writes whole, in place of one that it wrote before.

#include <filesystem>
#include <functional>
#include <string_view>

namespace reynard::cli {

// Before any work. Throws reynard::Error where the file exists, holds something and does not begin
// as what will be written: then it is something else, perhaps what the command reads.
//   what: "a page", flag: the option that names the file, for the message; is_one: whether the file
//   is that
void check_output(std::string_view command,
                  std::string_view file,
                  std::string_view beginning,
                  std::string_view what,
                  std::string_view flag = "-o");

void check_output(std::string_view command,
                  std::string_view file,
                  const std::function<bool(const std::filesystem::path&)>& is_one,
                  std::string_view what,
                  std::string_view flag = "-o");

// The same for a page of report/html_page.h.
void check_output_page(std::string_view command, std::string_view file);

// What the file is in the end, where it is a link: what is written goes there, and the link stays.
std::filesystem::path end_of_links(std::filesystem::path file);

// Writes it whole or not at all, at the end of links, and the folders above it that are missing.
void write_output(const std::filesystem::path& file, std::string_view bytes);

}  // namespace reynard::cli
