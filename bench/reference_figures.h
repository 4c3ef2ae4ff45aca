#pragma once
// What peers are known to reach on some kinds of machine when nothing disturbs them. A ratio
// against a peer that was held up says little, so a bench whose peer falls far short of its figure
// says so.

#include "bench/rows.h"

#include <string>

namespace reynard::bench {

// The kind of this machine as the figures name it, "Zen 5 x 2 threads"; empty where there are no
// figures for it.
std::string machine_kind();

// One sentence where the row's peer ran below 85 % of its figure on that kind of machine; empty
// otherwise, and where there is no figure.
std::string slow_peer_note(const Row& row, const std::string& machine_kind);

}  // namespace reynard::bench
