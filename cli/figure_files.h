#pragma once
// Figures as files, drawn by python/figures.py, and the JavaScript that draws them on a page.

#include "reynard/report/figure.h"

#include <filesystem>
#include <span>
#include <string>

namespace reynard::cli {

// The JavaScript that draws the figures: made once from the vl-convert wheel, then kept beside the
// program. Throws reynard::Error saying how to make it.
std::string vega_javascript();

// Writes every figure into the folder as ID.vl.json (its specification) and ID.png. Throws
// reynard::Error where they cannot be drawn; the specifications are written then.
void draw_figures(std::span<const report::Figure> figures, const std::filesystem::path& folder);

}  // namespace reynard::cli
