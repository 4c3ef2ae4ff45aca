#pragma once
// One file per subcommand: it adds itself to the program and runs from a CLI11 callback. Errors are
// thrown (reynard::Error for the user's mistakes: one line, exit code 2).

namespace CLI {
class App;
}

namespace reynard::cli {

void add_info(CLI::App& app);
void add_score(CLI::App& app);
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_serve(CLI::App& app);
void add_convert(CLI::App& app);
void add_prepare(CLI::App& app);
void add_train(CLI::App& app);
void add_sweep(CLI::App& app);
void add_eval(CLI::App& app);
void add_remember(CLI::App& app);
void add_inspect(CLI::App& app);
void add_report(CLI::App& app);
void add_forgetting_curve(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_tokenizer_train(CLI::App& tokenizer);  // under `tokenizer`
void add_compare(CLI::App& app);
void add_cost(CLI::App& app);
void add_dictionary(CLI::App& app);
void add_bench(CLI::App& app);
void add_completion(CLI::App& app);
void add_help(CLI::App& app);  // behind all others

}  // namespace reynard::cli
