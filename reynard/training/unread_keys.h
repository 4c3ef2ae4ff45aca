#pragma once
// Keys of an experiment that are set though nothing reads them beside its other choices, such as
// schedule.decay_fraction with another shape than wsd. Whoever writes one expects an effect, so
// that Experiment::check refuses them; what runs recorded, and what several experiments have in
// common, may hold them.

#include "reynard/training/experiment.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace reynard::training {

struct UnreadKey {
  std::string key;
  std::string needed;  // "needs schedule.shape = \"wsd\""
};
std::vector<UnreadKey> unread_keys(const Experiment& experiment);

// With these keys at their defaults: two experiments that differ by them alone become equal.
Experiment without_unread_keys(Experiment experiment);

// The experiment.toml of a run, without its unread keys. The program that wrote it took it: rules
// between its keys are not checked. Throws reynard::Error for a file that is none.
Experiment read_recorded_experiment(const std::filesystem::path& file);

// One of several experiments that a file is the base of: like config::read_toml, but unread keys
// are no mistake.
Experiment read_variant(const std::filesystem::path& file, std::span<const std::string> overrides);

}  // namespace reynard::training
