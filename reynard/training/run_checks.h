#pragma once
// What must hold of an experiment, its folder and its texts before the first step of a run, and how
// a run reads its texts. Errors are reynard::Error and name the key and the remedy.

#include "reynard/data/loader.h"
#include "reynard/training/experiment.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace reynard::training {

// That run.folder is free, or, with resume, holds a run that these settings can go on with.
void check_folder(const Experiment& experiment, bool resume);

// Settings that a run may go on with and that decide what it trains, the budget among them, as
// "optimizer.learning_rate: 0.01 -> 0.5".
std::vector<std::string> changes_of_training(const Experiment& before, const Experiment& now);

// Makes run.folder, or finds that results can be written there.
void make_folder(const std::filesystem::path& folder);

// That the texts fit the model and each other, which would else show after the last step.
void check_texts(const Experiment& experiment);

// That the budget holds a step, which would else be taken whole.
void check_budget(const Experiment& experiment);

// What is odd about the text, though a run goes on with it: a line each.
std::vector<std::string> notes_on_text(const Experiment& experiment);

// Settings of the model that run.start_from names which are others here though all shapes fit;
// empty: none. A memory that is added, what only first weights are drawn by, and pruning are not
// among them.
std::string note_on_first_weights(const Experiment& experiment);

// The text as it is trained on: in mode `ordered` each row of each micro-batch of a step goes on
// where it stopped in the step before.
std::unique_ptr<data::Loader> training_loader(const Experiment& experiment);

// The held-out text as it is measured: rows of the same kind, none of them repeated pieces. Which
// ones does not depend on data.batch_size and data.seed.
std::unique_ptr<data::Loader> held_out_loader(const Experiment& experiment);

}  // namespace reynard::training
