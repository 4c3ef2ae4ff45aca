#pragma once
// CLI11 reads whole numbers with strtoll and strtoull, which give the nearest limit for one beyond
// it, for -1 the largest unsigned number and for 010 eight; and no text at all as 0. Others may be
// nan or inf.

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace reynard::cli {

// Makes these errors, in every option of a number's type of the commands that there are.
void reject_wrong_numbers(CLI::App& app);

// CLI::PositiveNumber and CLI::NonNegativeNumber, whose messages spell the largest f64 out.
CLI::Validator above_zero();
CLI::Validator at_least_zero();
// CLI::Range with a message of the same form: both ends included.
CLI::Validator between(double least, double most);

}  // namespace reynard::cli
