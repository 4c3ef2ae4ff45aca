#pragma once
// How the threads of a parallel loop wait for each other.

namespace reynard::cli {

// OpenMP threads spin at the end of every parallel loop by default. Where another process wants a
// core they spin on time that the late thread needs: a training step on two busy cores took 26
// times as long. This starts the program again (same process id) with OMP_WAIT_POLICY=passive,
// because libgomp reads it when it is loaded; a policy that the user has set stays. Commands that
// write text have sixty short parallel loops a token, and waking a thread takes as long as one of
// them: their threads spin for a moment before they sleep.
void wait_passively(char** argv);  // argv[1]: the command

}  // namespace reynard::cli
