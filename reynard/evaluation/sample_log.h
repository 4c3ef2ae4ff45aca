#pragma once
// The file TASK.jsonl: a header line that says what was measured, then one line per sample. A line
// that was cut short by a crash is dropped when the file is opened again, and so is one that is
// damaged. Lines of a run with another header stay until the first sample of this one is there, and
// a file that is no such log stays as it is.

#include "reynard/evaluation/task.h"

#include <cstdint>
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
  // Opens the log for appending. header: has "task", "settings" and "identity". Lines of an earlier
  // run are kept when its header equals this one, otherwise the first flush() with a sample
  // replaces the file, or that is a reynard::Error (kKeep), as is another process that writes the
  // file, and a file whose first line is no such header.
  SampleLog(std::filesystem::path path, const nlohmann::json& header, Others others);

  // Whether lines of a run with another header are there, which this one's will replace.
  bool replaces() const { return replaces_; }
  // Lines that were left out when it was opened: damaged ones and those of a sample that is there
  // already. The end of a line that was cut short does not count.
  int64_t num_dropped() const { return num_dropped_; }
  bool contains(const std::string& id) const { return ids_.contains(id); }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  // Drops the lines whose sample is not asked for.
  void keep_only(const std::set<std::string>& asked);
  // Appends one line; `sample` must have a string "id".
  void append(const nlohmann::json& sample);
  void flush();
  // Reads the lines back, in the order of the file. Where `visit` misses a field of one, that is a
  // reynard::Error that names the file, the line and the field.
  Samples samples() const;

 private:
  void open();                                       // for appending, alone
  void rewrite(const std::set<std::string>* asked);  // with the lines that can be kept
  void write_line(std::string line);                 // without its newline
  [[noreturn]] void fail_to_write() const;           // as errno says

  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::string header_;   // its first line
  std::string pending_;  // the lines that will replace the file
  std::unique_ptr<std::FILE, Closer> file_;
  std::set<std::string> ids_;
  bool replaces_ = false;
  int64_t num_dropped_ = 0;
};

}  // namespace reynard::evaluation
