#include "cli/memory_limit.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace reynard::cli {

namespace {

// The number in a file of the control group; 0 when there is none ("max").
int64_t control_group_value(const std::string& path) {
  int64_t value = 0;
  std::ifstream in(path);
  return in >> value ? value : 0;
}

}  // namespace

int64_t machine_memory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 0;
  int64_t bytes = static_cast<int64_t>(info.totalram + info.totalswap) * info.mem_unit;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const int64_t limit = control_group_value(path);
    if (limit > 0) bytes = std::min(bytes, limit);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    bytes = static_cast<int64_t>(limit.rlim_cur);
  }
  return bytes;
}

void limit_memory_to_machine() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow is larger
  rlimit limit{};
  const auto memory = static_cast<rlim_t>(machine_memory());
  if (memory == 0 || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = memory;
  setrlimit(RLIMIT_DATA, &limit);
#endif
}

}  // namespace reynard::cli
