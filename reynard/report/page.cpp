#include "reynard/report/page.h"

#include "reynard/report/differences.h"
#include "reynard/report/run_look.h"
#include "reynard/report/sections.h"
#include "reynard/report/verdict.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::report {

namespace {

std::string title_of(const Runs& runs) {
  constexpr size_t kMostNames = 4;
  if (runs.size() > kMostNames) return fmt::format("What {} models remember", runs.size());
  std::string names;
  for (size_t i = 0; i < runs.size(); ++i) {
    names += i == 0 ? "" : i + 1 == runs.size() ? " and " : ", ";
    names += runs[i].name;
  }
  return fmt::format("What {} {}", names, runs.size() == 1 ? "remembers" : "remember");
}

}  // namespace

std::vector<std::string> names_of(const Runs& runs) {
  std::vector<std::string> names;
  for (const RunResults& run : runs) names.push_back(run.name);
  return names;
}

void keep(std::vector<Figure>& figures, std::optional<Figure> figure) {
  if (figure) figures.push_back(std::move(*figure));
}

std::vector<FigureGroup> figure_groups(const Runs& runs, const FigureOptions& options) {
  std::vector<FigureGroup> groups{
      {"loss", "Loss by position", "Does text far back help to predict the next token?", 1, {}},
      {"memory",
       "Forgetting curve",
       "How long can a text be so that the model repeats it after reading it once (Liu et al. "
       "2024)? Amber is the accuracy on the second half of a text that stood just before, blue "
       "on the same text after an unrelated one; bands are one standard deviation over repeats. "
       "In the grey band the two cannot be told apart (95 %, paired). Green ground: copied word "
       "for word. Blue: seen helps. Red: forgotten. The model reads twice the length on the "
       "axis, so up to half of the length trained on, everything fits.",
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
    keep(groups[4].figures, attention_mass(runs[i], i));
    keep(groups[4].figures, attention_mass_heads(runs[i], i));
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
    for (Figure& figure : group.figures) list_drawn_runs(figure.spec);
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
  PageShell shell{"reynard report", title_of(runs), lead_text(runs), {}, {}};
  if (options.comparison) shell.links.push_back({"compared", "Differences"});
  shell.links.push_back({"verdict", "Verdict"});
  for (const FigureGroup& group : groups) shell.links.push_back({group.id, group.title});
  const std::string samples = text_samples(runs);
  if (!samples.empty()) shell.links.push_back({"text", "Text"});
  shell.links.push_back({"speed", "Speed and memory"});
  shell.links.push_back({"words", "Words"});
  shell.links.push_back({"repeat", "Repeat it"});
  if (options.comparison) shell.main += differences_section(*options.comparison, runs);
  // One judgement of a pair on one page.
  shell.main += verdict_section(
      runs, {.tokens_to_copy = options.tokens_to_copy, .compares = !options.comparison});
  for (const FigureGroup& group : groups) shell.main += group_html(group);
  shell.main += samples + speed_section(runs) + words_section();
  shell.main += repeat_section(runs, options.command);
  return html_page(shell, vega_javascript);
}

}  // namespace reynard::report
