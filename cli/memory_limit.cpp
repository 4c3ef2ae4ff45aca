#include "cli/memory_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace reynard::cli {

namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The number in a file of the control group; kUnknown when there is none ("max").
int64_t control_group_value(const std::string& path) {
  int64_t value = 0;
  std::ifstream in(path);
  return in >> value && value >= 0 ? value : kUnknown;
}

// Page cache of the control group: used memory that is given up when it is needed.
int64_t page_cache(const std::string& stat_file) {
  std::ifstream in(stat_file);
  int64_t bytes = 0, value = 0;
  for (std::string name; in >> name >> value;) {
    if (name == "inactive_file" || name == "active_file") bytes += value;
  }
  return bytes;
}

struct ControlGroup {
  const char *limit, *used, *stat;
};
constexpr ControlGroup kControlGroups[] = {
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
     "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat"}};

int64_t free_in_container() {
  int64_t free = kUnknown;
  for (const ControlGroup& group : kControlGroups) {
    const int64_t limit = control_group_value(group.limit);
    const int64_t used = control_group_value(group.used);
    if (limit == kUnknown || used == kUnknown) continue;
    free = std::min(free, std::max<int64_t>(0, limit - used + page_cache(group.stat)));
  }
  return free;
}

int64_t free_in_machine() {
  std::ifstream in("/proc/meminfo");
  int64_t bytes = 0;
  for (std::string name, unit; in >> name;) {
    int64_t kilobytes = 0;
    if (!(in >> kilobytes)) break;
    std::getline(in, unit);
    if (name == "MemAvailable:" || name == "SwapFree:") bytes += kilobytes * 1024;
  }
  return bytes > 0 ? bytes : kUnknown;
}

}  // namespace

void limit_memory_to_free() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow is larger
  rlimit limit{};
  const int64_t free = std::min(free_in_machine(), free_in_container());
  if (free == kUnknown || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min(limit.rlim_cur, static_cast<rlim_t>(free));
  setrlimit(RLIMIT_DATA, &limit);
#endif
}

int64_t memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) != 0) return kUnknown;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kUnknown));
}

}  // namespace reynard::cli
