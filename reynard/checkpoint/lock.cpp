#include "reynard/checkpoint/lock.h"

#include <sys/file.h>

#include <cerrno>

namespace reynard::checkpoint {

Lock try_lock(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return Lock::kHeld;
  return errno == EWOULDBLOCK ? Lock::kBusy : Lock::kNone;
}

}  // namespace reynard::checkpoint
