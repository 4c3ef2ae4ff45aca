// reynard: the command-line program. Each subcommand is one file; this one lists them and turns
// errors into messages and exit codes: 0 done, 1 internal failure, 2 a mistake of the user or a bad
// file.

#include "cli/command.h"
#include "reynard/tensor/check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <new>

int main(int argc, char** argv) {
  CLI::App app{
      "reynard trains, runs and measures long-context language models that forget and look up.\n"
      "Start with ./quickstart, or: reynard prepare, reynard train, reynard eval, reynard report.",
      "reynard"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "reynard " REYNARD_VERSION);
  app.failure_message(CLI::FailureMessage::help);

  using namespace reynard::cli;
  add_prepare(app);

  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const reynard::Error& e) {
    fmt::print(stderr, "reynard: {}\n", e.what());
    return 2;
  } catch (const c10::OutOfMemoryError& e) {
    fmt::print(stderr, "reynard: out of memory: {}\n", e.what_without_backtrace());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "reynard: out of memory; use a shorter length or a smaller batch\n");
    return 2;
  } catch (const c10::Error& e) {
    fmt::print(stderr, "reynard: internal error: {}\n", e.what());
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "reynard: internal error: {}\n", e.what());
    return 1;
  }
}
