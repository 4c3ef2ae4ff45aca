#pragma once
// run.json, what a run's folder says of how it was made (docs/formats.md): the commands, the
// program and the machine.

#include <filesystem>
#include <string>
#include <vector>

namespace reynard::training {

class Trainer;
struct RunOptions;

// Written when a run begins and when it goes on, before its next step. changed: settings since the
// command before (changes_of_training()).
void write_run_json(Trainer& trainer,
                    const std::vector<std::string>& changed,
                    const RunOptions& options);

// Settings that were changed while the run was trained, as its run.json names them
// ("optimizer.learning_rate: 0.01 -> 0.5"): experiment.toml holds the last ones. Empty: none, or
// not recorded.
std::vector<std::string> settings_changed_on_the_way(const std::filesystem::path& folder);

}  // namespace reynard::training
