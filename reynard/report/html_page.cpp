#include "reynard/report/html_page.h"

#include "reynard/report/escape.h"
#include "reynard/report/page_assets.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::report {

namespace {

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

std::string group_html(const FigureGroup& group) {
  std::string text = fmt::format("<section id=\"{}\"><h2>{}</h2><p class=\"intro\">{}</p>",
                                 html(group.id),
                                 html(group.title),
                                 html(group.intro));
  text += fmt::format("<div class=\"grid{}\">\n", group.columns == 2 ? " two" : "");
  for (const Figure& figure : group.figures) text += figure_html(figure);
  return text + "</div></section>\n";
}

std::string words_section() {
  static constexpr std::pair<const char*, const char*> kWords[] = {
      {"Token", "The unit that a model reads and writes: a byte, a word or a piece of one."},
      {"Context",
       "The tokens before the one that is predicted; the length trained on is how many "
       "of them the model saw at once in training."},
      {"Loss, nats",
       "How surprised the model is by the next token: minus the natural logarithm of "
       "the probability it gave it. 0 is certain; 0.1 nats less is a probability 10 % "
       "higher. Divided by ln 2 and the bytes of a token it is bits per byte."},
      {"Perplexity",
       "The same on another scale: among how many equally likely tokens the model "
       "hesitates on average."},
      {"Held-out", "Text that the model was not trained on."},
      {"Layer, head",
       "A model is a stack of layers; the attention of each is split into heads "
       "that look at the past independently."},
      {"Query, key",
       "The token that looks back, and a token that it looks back at. Attention is "
       "the share of its look that each key gets."},
      {"Forget gate",
       "A number f from 0 to 1 that a head computes at every token: what came before "
       "counts f times as much from there on."},
      {"Pruning",
       "Leaving out past tokens that the gates have faded so far that they can no longer "
       "matter: at most a share ε, the tolerance, of any look."},
      {"Fine, coarse memory",
       "How long a text can be so that the model repeats it word for word "
       "after one reading, and so that having read it helps at all."}};
  std::string text = "<section id=\"words\"><h2>Words</h2><div class=\"card\"><dl>";
  for (const auto& [word, meaning] : kWords) {
    text += fmt::format("<dt>{}</dt><dd>{}</dd>", html(word), html(meaning));
  }
  return text + "</dl></div></section>\n";
}

std::string html_page(const PageShell& shell, std::string_view vega_javascript) {
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      // Nothing is loaded from anywhere; Vega compiles its expressions, hence unsafe-eval.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:\">"
      "<title>{}</title><style>{}</style></head><body>\n",
      html(shell.title),
      kPageStyle);
  text += fmt::format("<header><p class=\"eyebrow\">{}</p><h1>{}</h1><p class=\"lead\">{}</p><nav>",
                      html(shell.eyebrow),
                      html(shell.title),
                      html(shell.lead));
  for (const PageLink& link : shell.links) {
    text += fmt::format("<a href=\"#{}\">{}</a>", html(link.id), html(link.label));
  }
  text += "</nav></header>\n<main>\n" + shell.main + "</main>\n";
  text +=
      "<footer>Made by reynard. Figures are Vega-Lite specifications with their data inside; the "
      "menu at each figure's corner saves it as SVG or PNG. Drawn by Vega, Vega-Lite and "
      "Vega-Embed (BSD-3-Clause, University of Washington Interactive Data Lab and "
      "contributors).</footer>\n";
  text += fmt::format("<script>{}</script>\n<script>{}</script>\n</body></html>\n",
                      inline_script(vega_javascript),
                      kPageScript);
  return text;
}

}  // namespace reynard::report
