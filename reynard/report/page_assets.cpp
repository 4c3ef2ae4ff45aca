#include "reynard/report/page_assets.h"

namespace reynard::report {

const std::string_view kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #fbfbfa; --card: #ffffff; --ink: #1b1f27; --soft: #5c6473; --line: #e3e5ea;
  --accent: #c2410c; --accent-soft: #fff3ea; --code: #f3f4f6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #121419; --card: #1a1d24; --ink: #e7e9ee; --soft: #9aa3b2; --line: #2b303a;
    --accent: #fb923c; --accent-soft: #2a1f17; --code: #22262f;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.6 Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main, header, footer { max-width: 1080px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 56px; }
.eyebrow {
  font-size: 13px; font-weight: 600; letter-spacing: .08em; text-transform: uppercase;
  color: var(--accent); margin: 0;
}
h1 { font-size: clamp(28px, 4.4vw, 42px); line-height: 1.15; letter-spacing: -.02em; margin: 8px 0 12px; }
h2 { font-size: 24px; line-height: 1.25; letter-spacing: -.01em; margin: 0 0 4px; }
h3 { font-size: 16px; margin: 0 0 8px; }
p { margin: 8px 0; }
h1, h2, h3, p, li, dd, figcaption { overflow-wrap: anywhere; }
.lead { color: var(--soft); font-size: 17px; max-width: 46em; }
nav { display: flex; flex-wrap: wrap; gap: 8px; margin: 20px 0 0; padding: 0; }
nav a {
  font-size: 14px; text-decoration: none; color: var(--soft); border: 1px solid var(--line);
  border-radius: 999px; padding: 3px 12px; background: var(--card);
}
nav a:hover { color: var(--accent); border-color: var(--accent); }
section { margin: 40px 0; scroll-margin-top: 16px; }
.intro { color: var(--soft); max-width: 52em; margin: 0 0 16px; }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px 22px;
  margin: 16px 0; box-shadow: 0 1px 2px #0000000a;
}
.verdict { background: var(--accent-soft); border-color: color-mix(in srgb, var(--accent) 30%, var(--line)); }
.verdict ul { margin: 0; padding-left: 20px; }
.verdict li { margin: 7px 0; }
.verdict li::marker { color: var(--accent); }
.run {
  display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px;
  vertical-align: baseline;
}
.run.line { width: 28px; border-radius: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
th, td { text-align: left; padding: 9px 14px 9px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child th, tbody tr:last-child td { border-bottom: 0; }
thead th { font-size: 14px; white-space: nowrap; }
tbody th { font-weight: 500; min-width: 190px; }
tbody th small { display: block; font-weight: 400; color: var(--soft); font-size: 13px; line-height: 1.4; }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
td.pair { white-space: normal; min-width: 130px; }
td.absent { color: var(--soft); }
figure { margin: 0; }
figcaption { color: var(--soft); font-size: 14px; line-height: 1.55; margin-top: 10px; max-width: 62em; }
.plot { width: 100%; overflow-x: auto; position: relative; }
.plot .vega-embed { width: 100%; }
.plot .vega-embed summary { opacity: .25; }
.grid { display: grid; grid-template-columns: 1fr; gap: 16px; }
.grid .card { margin: 0; min-width: 0; }
@media (min-width: 900px) { .grid.two { grid-template-columns: 1fr 1fr; } }
pre {
  background: var(--code); border-radius: 10px; padding: 14px 16px; margin: 8px 0; overflow-x: auto;
  font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 420px;
}
.prompt { color: var(--soft); }
.written { background: color-mix(in srgb, var(--accent) 14%, transparent); border-radius: 3px; }
dl { display: grid; grid-template-columns: minmax(120px, 170px) 1fr; gap: 8px 18px; margin: 0; }
dt { font-weight: 500; }
dd { margin: 0; color: var(--soft); }
details > summary { cursor: pointer; color: var(--soft); font-size: 14px; }
footer { color: var(--soft); font-size: 13px; padding-bottom: 48px; border-top: 1px solid var(--line); padding-top: 16px; }
@media (max-width: 640px) {
  main, header, footer { padding-left: 16px; padding-right: 16px; }
  header { padding-top: 32px; }
  .card { padding: 16px; border-radius: 12px; }
  tbody th { min-width: 132px; }
  td { white-space: normal; }
  table { font-size: 14px; }
  body { font-size: 15px; }
  dl { grid-template-columns: 1fr; gap: 2px; }
  dd { margin-bottom: 8px; }
}
@media print {
  nav { display: none; }
  .card { break-inside: avoid; box-shadow: none; }
  pre { max-height: none; }
  pre, .scroll, .plot { overflow: visible; }  /* paper does not scroll */
  .plot svg.marks, .plot canvas.marks { max-width: 100% !important; height: auto !important; }
  h2, h3, .intro { break-after: avoid; }
  .intro { break-inside: avoid; }
  .scroll table { font-size: 12px; }
  .scroll th, .scroll td { white-space: normal; overflow-wrap: anywhere; min-width: 0; }
}
)css";

const std::string_view kPageScript = R"js(
(() => {
  // Names of runs stand in as many columns as fit.
  const pen = document.createElement("canvas").getContext("2d");
  const fitLegends = (node, width, font) => {
    if (node === null || typeof node !== "object") return;
    if (node.field === "run" && node.legend && node.scale) {
      pen.font = "12px " + font;
      const names = node.legend.values || node.scale.domain;
      const label = Math.max(...names.map((name) => pen.measureText(name).width));
      const mark = node.legend.symbolSize ? 54 : 36;
      node.legend.columns = Math.max(1, Math.floor((width - 20) / (label + mark)));
      node.legend.labelLimit = width - mark - 20;
    }
    for (const [key, value] of Object.entries(node)) {
      if (key !== "values") fitLegends(value, width, font);
    }
  };
  const draw = (plot) => {
    const spec = JSON.parse(document.getElementById("spec-" + plot.id).textContent);
    const meta = spec.usermeta || {};
    const width = plot.clientWidth;
    if (meta.cell) {
      const room = Math.max(1, Math.floor((width - 70) / meta.cell));  // at the smallest size
      let columns = meta.columns;  // a row per layer, if it fits
      if (columns > room) for (columns = room; columns > 2 && meta.heads % columns; --columns);
      spec.columns = columns;
      // A row that is not full: each map has its own axis, lest one stand under nothing.
      const ragged = meta.heads > columns && meta.heads % columns;
      spec.resolve = ragged ? { axis: { x: "independent" } } : {};
      // Larger maps where there is room, in whole pixels per cell.
      const size = Math.floor(((width - 80) / columns - 16) / meta.cells) * meta.cells;
      spec.spec.width = spec.spec.height = Math.max(meta.least, Math.min(meta.largest, size));
    }
    fitLegends(spec, width, spec.config.font);
    if (meta.tokens) {  // in as many rows as they need
      pen.font = "11px " + spec.config.font;
      spec.spec.width = Math.floor(width - pen.measureText(meta.label).width - 24);
      const room = Math.max(1, Math.floor(spec.spec.width / meta.column));
      spec.params[0].value = Math.ceil(meta.tokens / Math.ceil(meta.tokens / room));
    }
    const options = Object.assign({}, meta.embedOptions, {
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: plot.id,
    });
    return window.vegaEmbed(plot, spec, options).catch((error) => {
      plot.textContent = "This figure could not be drawn: " + error.message;
    });
  };
  // One after the other, from the top: the page answers while the rest is drawn.
  const drawAll = async () => {
    for (const plot of document.querySelectorAll(".plot")) await draw(plot);
  };
  drawAll();
})();
)js";

}  // namespace reynard::report
