#pragma once
// The file TASK.jsonl: a header line that says what was measured, then one line per sample. A line
// that was cut short by a crash is dropped when the file is opened again.

#include "reynard/evaluation/task.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

class SampleLog {
 public:
  // What becomes of the lines of a run with another header.
  enum class Others { kReplace, kKeep };
  // Opens the log for appending. Lines of an earlier run are kept when its header equals this one,
  // otherwise the file begins anew, or that is a reynard::Error (kKeep), as is another process that
  // writes the file.
  SampleLog(std::filesystem::path path, const nlohmann::json& header, Others others);

  // Whether lines of a run with another header were there.
  bool has_replaced() const { return has_replaced_; }
  bool contains(const std::string& id) const { return ids_.contains(id); }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  // Appends one line; `sample` must have a string "id".
  void append(const nlohmann::json& sample);
  void flush();
  // Reads the lines back, in the order of the file. Where `visit` misses a field of one, that is a
  // reynard::Error that names the file, the line and the field.
  Samples samples() const;

 private:
  void write_line(std::string line);  // without its newline

  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Closer> file_;
  std::set<std::string> ids_;
  bool has_replaced_ = false;
};

}  // namespace reynard::evaluation
