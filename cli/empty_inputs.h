#pragma once
// An input without a name, as an unset variable of a shell gives: told by the name of its option,
// where a file that is opened could only say that "" does not exist.

namespace CLI {
class App;
}  // namespace CLI

namespace reynard::cli {

// Makes it an error in every positional and every option of files to read, of the commands that
// there are.
void reject_empty_inputs(CLI::App& app);

}  // namespace reynard::cli
