#include "reynard/report/sections.h"

#include "reynard/config/fields.h"
#include "reynard/report/escape.h"
#include "reynard/report/figure_style.h"
#include "reynard/report/run_look.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace reynard::report {

namespace {

std::string run_label(const RunResults& run, size_t index) {
  return run_swatch(index) + html(run.name);
}

std::string cell(const std::string& value) {
  return value.empty() ? "<td class=\"absent\">–</td>" : fmt::format("<td>{}</td>", html(value));
}

std::string header_row(const Runs& runs, const char* first) {
  std::string text = fmt::format("<thead><tr><th>{}</th>", first);
  for (size_t i = 0; i < runs.size(); ++i) {
    text += fmt::format("<th>{}</th>", run_label(runs[i], i));
  }
  return text + "</tr></thead>";
}

// A command of a result file: a list of arguments, or a line.
std::string command_line(const json& object) {
  const auto found = object.find("command");
  if (found == object.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  std::string line;
  if (!found->is_array()) return line;
  for (const json& argument : *found) {
    if (!argument.is_string()) continue;
    if (!line.empty()) line += ' ';
    line += shell_word(argument.get<std::string>());
  }
  return line;
}

// A run that went on with another command or program was made in stretches, oldest first.
std::vector<json> stretches_of(const json& run) {
  std::vector<json> stretches;
  const auto earlier = run.find("earlier");
  if (earlier != run.end() && earlier->is_array())
    stretches.assign(earlier->begin(), earlier->end());
  stretches.push_back(run);
  return stretches;
}

std::string sample_html(const json& sample) {
  const std::string prompt = text_at(sample, "/prompt");
  const std::string text = text_at(sample, "/text");
  return fmt::format("<pre><span class=\"prompt\">{}</span><span class=\"written\">{}</span></pre>",
                     html(prompt),
                     html(text));
}

std::string speed_of(const json& summary) {
  const double tokens = number_at(summary, "/effort/tokens");
  const double seconds = number_at(summary, "/effort/seconds");
  if (!(tokens > 0) || !(seconds > 0)) return "";
  return fmt::format("{} tokens/s", with_unit(tokens / seconds));
}

struct SpeedRow {
  std::string label, meaning;
  std::vector<std::string> values;
};

std::string speed_table(const Runs& runs, const std::vector<SpeedRow>& rows) {
  std::string text =
      fmt::format("<div class=\"card scroll\"><table>{}<tbody>", header_row(runs, ""));
  for (const SpeedRow& row : rows) {
    text += fmt::format("<tr><th>{}<small>{}</small></th>", html(row.label), html(row.meaning));
    for (const std::string& value : row.values) text += cell(value);
    text += "</tr>";
  }
  return text + "</tbody></table></div>";
}

}  // namespace

std::string lead_text(const Runs& runs) {
  std::set<std::string> texts;
  for (const RunResults& run : runs) {
    for (const auto& [task, summary] : run.evaluations) {
      const std::string name = config::printable(text_at(summary, "/text"));
      if (!name.empty()) texts.insert(name);
    }
  }
  std::string lead =
      fmt::format("{} trained and measured with reynard",
                  runs.size() == 1 ? "One model" : fmt::format("{} models", runs.size()));
  if (!texts.empty()) {
    lead += ", on held-out text from ";
    size_t i = 0;
    for (const std::string& name : texts) lead += fmt::format("{}{}", i++ ? ", " : "", name);
  }
  lead += ".";
  const auto of_sweep =
      std::ranges::find_if(runs, [](const RunResults& run) { return !run.shared.empty(); });
  if (of_sweep != runs.end()) lead += fmt::format(" All of the sweep have {}.", of_sweep->shared);
  return lead;
}

std::string verdict_section(const Runs& runs, const VerdictOptions& options) {
  std::string text = "<section id=\"verdict\"><h2>Verdict</h2>";
  const std::vector<std::string> sentences = verdict(runs, options);
  if (!sentences.empty()) {
    text += "<div class=\"card verdict\"><ul>";
    for (const std::string& sentence : sentences) {
      text += fmt::format("<li>{}</li>", html(sentence));
    }
    text += "</ul></div>";
  }
  const std::vector<SummaryRow> rows = summary_rows(runs);
  if (!rows.empty()) {
    text += fmt::format("<div class=\"card scroll\"><table>{}<tbody>", header_row(runs, ""));
    for (const SummaryRow& row : rows) {
      text +=
          fmt::format("<tr><th>{}<small>{}</small></th>", html(row.quantity), html(row.meaning));
      for (const std::string& value : row.values) text += cell(value);
      text += "</tr>";
    }
    text += "</tbody></table></div>";
  }
  return text + "</section>\n";
}

std::string text_samples(const Runs& runs) {
  std::string cards;
  for (size_t i = 0; i < runs.size(); ++i) {
    const json* summary = runs[i].evaluation("text_sample");
    if (!summary || list_at(*summary, "/series/samples").empty()) continue;
    cards += fmt::format("<div class=\"card\"><h3>{}</h3>", run_label(runs[i], i));
    for (const json& sample : list_at(*summary, "/series/samples")) {
      const double temperature = number_at(sample, "/temperature");
      cards += fmt::format("<p>{}</p>{}",
                           temperature > 0 ? fmt::format("Sampled at temperature {:g}", temperature)
                                           : "Most probable token each time",
                           sample_html(sample));
    }
    const std::string truth = text_at(*summary, "/series/truth");
    if (!truth.empty()) {
      cards += fmt::format(
          "<details><summary>How the text really goes on</summary><pre>{}</pre>"
          "</details>",
          html(truth));
    }
    cards += "</div>";
  }
  if (cards.empty()) return "";
  return "<section id=\"text\"><h2>A text sample</h2><p class=\"intro\">The grey beginning is "
         "held-out text; the coloured rest is written by the model.</p>" +
         cards + "</section>\n";
}

std::string speed_section(const Runs& runs) {
  std::vector<SpeedRow> rows;
  const auto add = [&](std::string label, std::string meaning, auto&& value) {
    SpeedRow row{std::move(label), std::move(meaning), {}};
    bool any = false;
    for (const RunResults& run : runs) {
      row.values.push_back(value(run));
      any = any || !row.values.back().empty();
    }
    if (any) rows.push_back(std::move(row));
  };
  add("Training", "median over logged steps", [](const RunResults& run) {
    const double speed = median_speed(run);
    return std::isnan(speed) ? "" : with_unit(speed) + " tokens/s";
  });
  add("Training, peak memory", "resident set of the process", [](const RunResults& run) {
    const double bytes = peak_memory(run);
    return std::isnan(bytes) ? "" : bytes_text(bytes);
  });
  const std::vector<std::pair<const char*, const char*>> tasks = {
      {"per_position_loss", "forward pass over long rows"},
      {"forgetting_curve", "forward pass over many lengths"},
      {"text_sample", "one token after the other, prompt included"}};
  for (const auto& [task, meaning] : tasks) {
    add(task, meaning, [task = task](const RunResults& run) {
      const json* summary = run.evaluation(task);
      return summary ? speed_of(*summary) : std::string();
    });
  }
  add("Evaluation, peak memory", "resident set, largest of all tasks", [](const RunResults& run) {
    double bytes = 0;
    for (const auto& [task, summary] : run.evaluations) {
      bytes = std::fmax(bytes, number_at(summary, "/effort/peak_memory_bytes"));
    }
    return bytes > 0 ? bytes_text(bytes) : std::string();
  });
  add("Machine", "processor, cores, instruction set", [](const RunResults& run) {
    const json machine = run.run.value("machine", json::object());
    const double cores = number_at(machine, "/cores");
    std::string text = text_at(machine, "/cpu");
    if (!std::isnan(cores)) text += ", " + grouped(static_cast<int64_t>(cores), "core");
    const std::string isa = text_at(machine, "/isa");
    return isa.empty() ? text : text + ", " + isa;
  });
  if (rows.empty()) return "";
  return "<section id=\"speed\"><h2>Speed and memory</h2><p class=\"intro\">Measured while the "
         "runs were made; other programs on the machine slow them.</p>" +
         speed_table(runs, rows) + "</section>\n";
}

std::string repeat_section(const Runs& runs, const std::string& command) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& line) {
    // One command may have measured several tasks.
    if (!line.empty() && std::find(lines.begin(), lines.end(), line) == lines.end()) {
      lines.push_back(line);
    }
  };
  for (const RunResults& run : runs) {
    for (const json& stretch : stretches_of(run.run)) add(command_line(stretch));
  }
  for (const RunResults& run : runs) {
    for (const auto& [task, summary] : run.evaluations) add(command_line(summary));
  }
  add(command);
  if (lines.empty()) return "";
  std::string text =
      "<section id=\"repeat\"><h2>Repeat it</h2><p class=\"intro\">The commands that made these "
      "numbers, in order. The effective settings of each run are in its experiment.toml.</p>"
      "<div class=\"card\"><pre>";
  for (const std::string& line : lines) text += html(line) + "\n";
  text += "</pre>";
  std::set<std::string> revisions;
  for (const RunResults& run : runs) {
    for (const json& stretch : stretches_of(run.run)) {
      revisions.insert(text_at(stretch, "/git_revision"));
    }
  }
  revisions.erase("");
  for (const std::string& revision : revisions) {
    text += fmt::format("<p class=\"intro\">Source revision {}.</p>", html(revision));
  }
  return text + "</div></section>\n";
}

}  // namespace reynard::report
