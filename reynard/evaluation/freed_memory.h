#pragma once
// Memory of a process that answers samples of many lengths.

namespace reynard::evaluation {

// What is freed goes back to the system. By default the C library maps only blocks above a limit by
// themselves, and raises it to 32 MB as they are freed: activations of one length then leave holes
// in the heap that those of the next do not fit, and the process holds nearly twice what it uses.
void return_freed_memory();

}  // namespace reynard::evaluation
