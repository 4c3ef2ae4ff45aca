#pragma once
// The frame of every page: head, style, title, links, the bundle that draws figures and nothing
// loaded from anywhere; and a section of figures.

#include "reynard/report/figure.h"

#include <string>
#include <string_view>
#include <vector>

namespace reynard::report {

struct FigureGroup {
  std::string id, title, intro;  // plain text
  int columns = 1;
  std::vector<Figure> figures;
};
std::string group_html(const FigureGroup& group);

// What the words of these pages mean, for readers who have not read the papers.
std::string words_section();

struct PageLink {
  std::string id, label;  // plain text
};
struct PageShell {
  std::string eyebrow, title, lead;  // plain text
  std::vector<PageLink> links;       // to sections
  std::string main;                  // HTML of the sections
};
// vega_javascript: a bundle that defines window.vegaEmbed.
std::string html_page(const PageShell& shell, std::string_view vega_javascript);

}  // namespace reynard::report
