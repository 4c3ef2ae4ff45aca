#pragma once
// Memory of a process that does the same step again and again.

namespace reynard::training {

// What is freed stays with the process and is given out again, blocks of any size. By default the C
// library maps large blocks for each tensor anew, and every step faults its gradients, logits and
// activations in page by page. What the heap grows by comes in huge pages: a step walks through
// hundreds of megabytes.
void keep_freed_memory();

}  // namespace reynard::training
