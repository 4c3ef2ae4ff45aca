#pragma once
// Locks of files and folders between processes. They end with the descriptor, so with the process
// too, however it ends.

namespace reynard::checkpoint {

enum class Lock {
  kHeld,  // by us from now on
  kBusy,  // another has it
  kNone,  // this file system has no locks: they keep nobody out
};
// Does not wait.
Lock try_lock(int descriptor);

}  // namespace reynard::checkpoint
