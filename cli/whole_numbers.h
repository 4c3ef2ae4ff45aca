#pragma once
// CLI11 reads whole numbers with strtoll and strtoull, which give the nearest limit for one beyond
// it, and for -1 the largest unsigned number.

namespace CLI {
class App;
}

namespace reynard::cli {

// Makes numbers that do not fit errors, in every option of the commands that there are.
void reject_numbers_out_of_range(CLI::App& app);

}  // namespace reynard::cli
