#include "cli/figure_files.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/json_file.h"
#include "reynard/process/child_process.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/installation.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

namespace reynard::cli {

namespace fs = std::filesystem;

namespace {

std::string figures_python() {
  return tensor::named_in_environment("REYNARD_PYTHON", REYNARD_PYTHON);
}

// Runs python/figures.py; true when it exits with 0.
bool run_figures(const std::string& what, const fs::path& path) {
  try {
    process::ChildProcess python(
        {.arguments = {
             figures_python(), tensor::project_file("python/figures.py"), what, path.string()}});
    return python.wait().exit_code == 0;
  } catch (const Error&) {  // there is no such Python
    return false;
  }
}

std::string figures_command(const std::string& what, const fs::path& path) {
  return fmt::format("{} {} {} {}",
                     figures_python(),
                     tensor::project_file("python/figures.py"),
                     what,
                     path.string());
}

}  // namespace

std::string vega_javascript() {
  const fs::path built = fs::read_symlink("/proc/self/exe").parent_path() / "../share";
  const fs::path bundle =
      tensor::named_in_environment("REYNARD_VEGA", (built / "vega-embed.js").string());
  checkpoint::remove_leftovers(bundle);
  if (!fs::exists(bundle) && !run_figures("bundle", bundle)) {
    throw Error(fmt::format(
        "report: {} is missing (the JavaScript that draws the figures; $REYNARD_VEGA names another "
        "file) and could not be made; install scripts/requirements.txt and run `{}` "
        "($REYNARD_PYTHON names another Python)",
        bundle.string(),
        figures_command("bundle", bundle)));
  }
  std::ifstream in(bundle, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.str().find("vegaEmbed") == std::string::npos) {
    throw Error(fmt::format(
        "report: {} does not hold the Vega bundle; delete it and run this again, or name another "
        "file with $REYNARD_VEGA",
        bundle.string()));
  }
  return text.str();
}

void draw_figures(std::span<const report::Figure> figures, const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw Error(fmt::format("report: cannot create {}: {}", folder.string(), failed.message()));
  }
  for (const report::Figure& figure : figures) {
    checkpoint::write_atomically(folder / (figure.id + ".vl.json"), config::json_text(figure.spec));
    checkpoint::remove_leftovers(folder / (figure.id + ".png"));
  }
  if (!run_figures("png", folder)) {
    throw Error(
        fmt::format("report: the figures could not be drawn; run `{}` to see why, or name another "
                    "Python with $REYNARD_PYTHON (the specifications are written)",
                    figures_command("png", folder)));
  }
}

}  // namespace reynard::cli
