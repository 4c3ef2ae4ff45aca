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
#include <functional>
#include <iterator>
#include <utility>

namespace reynard::evaluation {

namespace {

enum class Owner {
  kNobody,  // empty, or the beginning of this header: cut short by a crash
  kOurs,
  kOthers,  // a log with another header
  kForeign  // no log
};

// What can be kept of a file: whole, valid lines behind this header, each of a sample of its own
// that is one of `asked`; null: any.
struct Kept {
  Owner owner = Owner::kNobody;
  int64_t bytes = 0;  // to the end of the last whole line
  int64_t num_dropped = 0;
  std::set<std::string> ids;
};

bool is_header(const nlohmann::json& value) {
  return value.contains("task") && value.contains("settings") && value.contains("identity");
}

// The id of a sample's line; empty where it is damaged.
std::string id_of(const nlohmann::json& value) {
  const auto id = value.is_object() ? value.find("id") : value.end();
  return id != value.end() && id->is_string() ? id->get<std::string>() : "";
}

// keep: takes each line that is kept, without its newline
Kept read_lines(
    const std::filesystem::path& path,
    const std::string& header,
    const std::set<std::string>* asked = nullptr,
    const std::function<void(const std::string&)>& keep = [](const std::string&) {}) {
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  std::string line;
  if (!std::getline(in, line) || in.eof()) {  // eof here: the line has no newline
    if (!header.starts_with(line)) kept.owner = Owner::kForeign;
    return kept;
  }
  const nlohmann::json first = config::parse_json_text(line);
  kept.owner = !is_header(first)                        ? Owner::kForeign
               : first == nlohmann::json::parse(header) ? Owner::kOurs
                                                        : Owner::kOthers;
  if (kept.owner != Owner::kOurs) return kept;
  keep(line);
  kept.bytes = std::ssize(line) + 1;
  while (std::getline(in, line) && !in.eof()) {
    kept.bytes += std::ssize(line) + 1;
    const std::string id = id_of(config::parse_json_text(line));
    const bool is_asked = asked == nullptr || asked->contains(id);
    if (!id.empty() && is_asked && kept.ids.insert(id).second) {
      keep(line);
    } else {
      ++kept.num_dropped;
    }
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
    : path_(std::move(path)), header_(config::json_text(header)) {
  open();
  Kept kept = read_lines(path_, header_);
  if (kept.owner == Owner::kForeign) {
    throw Error(fmt::format(
        "eval: {} exists and is not a sample log; remove it or give another folder with -o",
        path_.string()));
  }
  replaces_ = kept.owner == Owner::kOthers;
  if (replaces_ && others == Others::kKeep) {
    throw Error(
        fmt::format("eval: --resume: {} holds samples of other settings, another model or text; "
                    "give another -o, or leave --resume out to measure anew",
                    path_.string()));
  }
  checkpoint::remove_leftovers(path_);
  num_dropped_ = kept.num_dropped;
  if (num_dropped_ > 0) {
    rewrite(/*asked=*/nullptr);
  } else if (!replaces_) {
    ids_ = std::move(kept.ids);
    std::filesystem::resize_file(path_, static_cast<uintmax_t>(kept.bytes));
  }
  if (kept.owner != Owner::kOurs) {
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

void SampleLog::rewrite(const std::set<std::string>* asked) {
  checkpoint::AtomicFile file(path_);
  Kept kept = read_lines(path_, header_, asked, [&](const std::string& line) {
    file.write(line.data(), line.size());
    file.write("\n", 1);
  });
  file.commit();
  open();
  ids_ = std::move(kept.ids);
}

void SampleLog::keep_only(const std::set<std::string>& asked) {
  if (!std::includes(asked.begin(), asked.end(), ids_.begin(), ids_.end())) rewrite(&asked);
}

void SampleLog::append(const nlohmann::json& sample) {
  // Generated text may end inside a character.
  write_line(config::json_text(sample));
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
