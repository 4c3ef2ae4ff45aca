#include "reynard/evaluation/sample_log.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/lock.h"
#include "reynard/config/json_file.h"
#include "reynard/tensor/check.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace reynard::evaluation {

namespace {

// As it reads back: names of files need not be UTF-8.
std::string header_line(const nlohmann::json& header) {
  return header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Bytes of the leading part of the file that can be kept: a matching header and whole, valid lines,
// each of a sample of its own that is one of `asked`; null: any.
struct Kept {
  int64_t bytes = 0;
  std::set<std::string> ids;
  bool is_other = false;  // it begins with another header
};

Kept readable_part(const std::filesystem::path& path,
                   const std::string& header,
                   const std::set<std::string>* asked = nullptr) {
  const nlohmann::json ours = nlohmann::json::parse(header);
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  std::string line;
  bool first = true;
  while (std::getline(in, line) && !in.eof()) {  // eof here: the last line has no newline
    const nlohmann::json value = config::parse_json_text(line);
    if (!value.is_object()) break;
    if (first) {
      kept.is_other = value != ours;
      if (kept.is_other) break;
      first = false;
    } else {
      const auto id = value.find("id");
      if (id == value.end() || !id->is_string()) break;
      std::string name = id->get<std::string>();
      if (asked != nullptr && !asked->contains(name)) break;
      if (!kept.ids.insert(std::move(name)).second) break;
    }
    kept.bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return kept;
}

// "key 'loss' not found" of "[json.exception.out_of_range.403] key 'loss' not found".
std::string problem_of(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  return text.substr(text.find("] ") + 2);
}

}  // namespace

SampleLog::SampleLog(std::filesystem::path path, const nlohmann::json& header, Others others)
    : path_(std::move(path)), header_(header_line(header)) {
  open();
  Kept kept = readable_part(path_, header_);
  if (kept.is_other && others == Others::kKeep) {
    throw Error(
        fmt::format("eval: --resume: {} holds samples of other settings, another model or text; "
                    "give another -o, or leave --resume out to measure anew",
                    path_.string()));
  }
  checkpoint::remove_leftovers(path_);
  ids_ = std::move(kept.ids);
  replaces_ = kept.is_other;
  if (!replaces_) std::filesystem::resize_file(path_, static_cast<uintmax_t>(kept.bytes));
  if (kept.bytes == 0) {
    write_line(header_);
    flush();
  }
}

void SampleLog::open() {
  const int descriptor = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  std::unique_ptr<std::FILE, Closer> file(descriptor < 0 ? nullptr : ::fdopen(descriptor, "ab"));
  if (!file) {
    const int reason = errno;
    throw Error(fmt::format("eval: cannot write {}: {}; give another folder with -o",
                            path_.string(),
                            std::strerror(reason)));
  }
  if (checkpoint::try_lock(descriptor) == checkpoint::Lock::kBusy) {
    throw Error(fmt::format(
        "eval: {}: another process is writing it; wait until it ends, or give another -o",
        path_.string()));
  }
  file_ = std::move(file);
}

void SampleLog::keep_only(const std::set<std::string>& asked) {
  if (std::includes(asked.begin(), asked.end(), ids_.begin(), ids_.end())) return;
  Kept kept = readable_part(path_, header_, &asked);
  std::filesystem::resize_file(path_, static_cast<uintmax_t>(kept.bytes));
  ids_ = std::move(kept.ids);
}

void SampleLog::append(const nlohmann::json& sample) {
  // Generated text may end inside a character.
  write_line(sample.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  ids_.insert(sample.at("id").get<std::string>());
}

void SampleLog::write_line(std::string line) {
  line += '\n';
  if (replaces_) {
    pending_ += line;
  } else if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size()) {
    fail_to_write();
  }
}

void SampleLog::fail_to_write() const {
  const int reason = errno;
  throw Error(fmt::format(
      "eval: cannot write {}: {}", path_.string(), checkpoint::write_error_text(path_, reason)));
}

void SampleLog::flush() {
  if (replaces_ && !ids_.empty()) {
    checkpoint::write_atomically(path_, pending_);
    open();
    pending_.clear();
    replaces_ = false;
  }
  if (std::fflush(file_.get()) != 0) fail_to_write();
}

Samples SampleLog::samples() const {
  return {size(), [path = path_](const std::function<void(const nlohmann::json&)>& visit) {
            std::ifstream in(path, std::ios::binary);
            std::string line;
            std::getline(in, line);  // header
            int64_t number = 2;
            const auto fail = [&](std::string_view problem) {
              throw Error(fmt::format(
                  "eval: {}:{}: {}; delete this line, then its sample is measured again",
                  path.string(),
                  number,
                  problem));
            };
            for (; std::getline(in, line); ++number) {
              try {
                visit(nlohmann::json::parse(line));
              } catch (const nlohmann::json::exception& error) {
                fail(problem_of(error));
              } catch (const Error& error) {
                fail(error.what());
              }
            }
          }};
}

}  // namespace reynard::evaluation
