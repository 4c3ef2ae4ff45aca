#include "reynard/report/page.h"

#include "reynard/report/differences.h"
#include "reynard/report/escape.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/page_assets.h"
#include "reynard/report/sections.h"
#include "reynard/report/verdict.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::report {

namespace {

std::string title_of(const Runs& runs) {
  std::string names;
  for (size_t i = 0; i < runs.size(); ++i) {
    names += i == 0 ? "" : i + 1 == runs.size() ? " and " : ", ";
    names += runs[i].name;
  }
  return fmt::format("What {} {}", names, runs.size() == 1 ? "remembers" : "remember");
}

std::string figure_html(const Figure& figure) {
  return fmt::format(
      "<figure class=\"card\"><h3>{}</h3><div class=\"plot\" id=\"{}\"></div>"
      "<figcaption>{}</figcaption>"
      "<script type=\"application/json\" id=\"spec-{}\">{}</script></figure>\n",
      html(figure.title),
      html(figure.id),
      html(figure.caption),
      html(figure.id),
      script_json(figure.spec));
}

std::string group_html(const FigureGroup& group) {
  std::string text = fmt::format("<section id=\"{}\"><h2>{}</h2><p class=\"intro\">{}</p>",
                                 html(group.id),
                                 html(group.title),
                                 html(group.intro));
  text += fmt::format("<div class=\"grid{}\">\n", group.columns == 2 ? " two" : "");
  for (const Figure& figure : group.figures) text += figure_html(figure);
  return text + "</div></section>\n";
}

void keep(std::vector<Figure>& figures, std::optional<Figure> figure) {
  if (figure) figures.push_back(std::move(*figure));
}

// The bundle as the content of a <script> element.
std::string inline_script(std::string_view javascript) {
  std::string safe;
  safe.reserve(javascript.size());
  for (size_t i = 0; i < javascript.size(); ++i) {
    const bool closes = javascript.substr(i, 8) == "</script" || javascript.substr(i, 4) == "<!--";
    safe += closes ? "\\x3c" : std::string(1, javascript[i]);
  }
  return safe;
}

}  // namespace

std::vector<FigureGroup> figure_groups(const Runs& runs, const FigureOptions& options) {
  std::vector<FigureGroup> groups{
      {"loss", "Loss by position", "Does text far back help to predict the next token?", 1, {}},
      {"memory",
       "Forgetting curve",
       "How long can a text be so that the model repeats it after reading it once (Liu et al. "
       "2024)? "
       "Amber is the accuracy on the second half of a text that stood just before, blue on the "
       "same "
       "text after an unrelated one; bands are one standard deviation over repeats. In the grey "
       "band "
       "the two cannot be told apart (95 %, paired). Green ground: copied word for word. Blue: "
       "seen "
       "helps. Red: forgotten. The model reads twice the length on the axis, so up to half of the "
       "length trained on, everything fits.",
       runs.size() > 1 ? 2 : 1,
       {}},
      {"retrieval",
       "Finding what was said",
       "Something stands somewhere in a long text; at the end the model is asked for it.",
       1,
       score_figures(runs)},
      {"pruning",
       "Pruning",
       "Where the forget gates have faded the past below a stated tolerance, attention skips it.",
       runs.size() > 1 ? 2 : 1,
       {}},
      {"inside", "Inside the heads", "What gates and attention do on one piece of text.", 1, {}},
      {"training", "Training", "How each run got here.", 1, {}}};
  keep(groups[0].figures, loss_by_position(runs, options));
  keep(groups[0].figures, perplexity_by_length(runs));
  for (size_t i = 0; i < runs.size(); ++i) {
    keep(groups[1].figures, forgetting_curve(runs[i], i));
    keep(groups[3].figures, pruned_share(runs[i], i));
    keep(groups[4].figures, forget_gates(runs[i], i));
    keep(groups[4].figures, decay_maps(runs[i], i));
    keep(groups[4].figures, attention_maps(runs[i], i));
  }
  // Under the curves: they have the same axis.
  for (size_t i = 0; i < runs.size(); ++i) keep(groups[1].figures, curve_perplexity(runs[i], i));
  for (size_t i = 0; i < runs.size(); ++i) keep(groups[1].figures, curve_targets(runs[i], i));
  for (size_t i = 0; i < runs.size(); ++i) keep(groups[1].figures, curve_prefixes(runs[i], i));
  keep(groups[5].figures, training_loss(runs));
  keep(groups[5].figures, gate_saturation(runs));
  keep(groups[5].figures, training_speed(runs));
  for (Figure& figure : checkpoint_figures(runs)) groups[5].figures.push_back(std::move(figure));
  for (FigureGroup& group : groups) {
    if (group.figures.size() == 1) group.columns = 1;
  }
  std::erase_if(groups, [](const FigureGroup& group) { return group.figures.empty(); });
  return groups;
}

std::string page(const Runs& runs, const PageOptions& options, std::string_view vega_javascript) {
  std::vector<FigureGroup> groups = figure_groups(runs, options.figures);
  if (options.comparison) {
    const std::optional<Figure> figure = difference_figure(*options.comparison, runs);
    if (figure) {
      groups.insert(groups.begin(),
                    {"intervals", "Intervals", "How sure each difference is.", 1, {*figure}});
    }
  }
  const std::string title = title_of(runs);
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      // Nothing is loaded from anywhere; Vega compiles its expressions, hence unsafe-eval.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:\">"
      "<title>{}</title><style>{}</style></head><body>\n",
      html(title),
      kPageStyle);
  text += fmt::format(
      "<header><p class=\"eyebrow\">reynard report</p><h1>{}</h1><p class=\"lead\">{}</p><nav>"
      "{}<a href=\"#verdict\">Verdict</a>",
      html(title),
      html(lead_text(runs)),
      options.comparison ? "<a href=\"#compared\">Differences</a>" : "");
  for (const FigureGroup& group : groups) {
    text += fmt::format("<a href=\"#{}\">{}</a>", html(group.id), html(group.title));
  }
  const std::string samples = text_samples(runs);
  if (!samples.empty()) text += "<a href=\"#text\">Text</a>";
  text +=
      "<a href=\"#speed\">Speed and memory</a><a href=\"#repeat\">Repeat it</a></nav></header>\n";
  text += "<main>\n";
  if (options.comparison) text += differences_section(*options.comparison, runs);
  text += verdict_section(runs, options.tokens_to_copy);
  for (const FigureGroup& group : groups) text += group_html(group);
  text += samples + speed_section(runs) + repeat_section(runs, options.command) + "</main>\n";
  text +=
      "<footer>Made by reynard. Figures are Vega-Lite specifications with their data inside; the "
      "menu "
      "at each figure's corner saves it as SVG or PNG. Drawn by Vega, Vega-Lite and Vega-Embed "
      "(BSD-3-Clause, University of Washington Interactive Data Lab and contributors).</footer>\n";
  text += fmt::format("<script>{}</script>\n<script>{}</script>\n</body></html>\n",
                      inline_script(vega_javascript),
                      kPageScript);
  return text;
}

}  // namespace reynard::report
