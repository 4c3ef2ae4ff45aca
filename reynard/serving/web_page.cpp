#include "reynard/serving/web_page.h"

namespace reynard::serving {

const std::string_view kWebPage = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>reynard</title>
<link rel="icon" href="data:,">
<style>
  :root { color-scheme: light dark;
          --paper: #fbfbfa; --ink: #1b1f27; --line: #ddd; --accent: #c60; --wrong: #b00; }
  @media (prefers-color-scheme: dark) {
    :root { --paper: #121419; --ink: #e7e9ee; --line: #3a404b; --accent: #fb923c; --wrong: #ff8a80; }
  }
  body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
  textarea { width: 100%; height: 8rem; font: inherit; box-sizing: border-box; }
  label { margin-right: 1rem; } input[type=number] { width: 6rem; font: inherit; }
  button { font: inherit; padding: .2rem 1rem; }
  #text { white-space: pre-wrap; border-left: 3px solid var(--accent); padding-left: 1rem; min-height: 3rem; }
  #error { color: var(--wrong); } table { border-collapse: collapse; font-size: 13px; }
  td, th { padding: 0 .5rem; text-align: right; } td { border: 1px solid var(--line); }
</style>
<h1>reynard <small id="model"></small></h1>
<label for="prompt">Text to go on from</label>
<textarea id="prompt"></textarea>
<p>
  <label>tokens <input id="tokens" type="number" value="128" min="1"></label>
  <label>temperature <input id="temperature" type="number" value="0.8" min="0" step="0.1"></label>
  <label>key <input id="key" type="password" size="8"></label>
  <button id="go">Write</button> <button id="stop" disabled>Stop</button>
</p>
<p id="error"></p>
<div id="text"></div>
<p id="speed"></p>
<div id="cache"></div>
<script>
const $ = id => document.getElementById(id);
let controller = null;
const headers = () => ({'Content-Type': 'application/json',
                        ...($('key').value ? {Authorization: 'Bearer ' + $('key').value} : {})});
fetch('/v1/models', {headers: headers()}).then(r => r.ok ? r.json() : null)
  .then(m => { if (m) $('model').textContent = m.data[0].id; });
function showCache(cache) {
  const table = document.createElement('table');
  const head = table.insertRow();
  head.innerHTML = '<th>pages of ' + cache.pages_seen + '</th>' +
      cache.pages_kept[0].map((_, h) => '<th>head ' + (h + 1) + '</th>').join('');
  cache.pages_kept.forEach((heads, layer) => {
    const row = table.insertRow();
    row.innerHTML = '<th>layer ' + (layer + 1) + '</th>';
    for (const pages of heads) {
      const cell = row.insertCell();
      cell.textContent = pages;
      const share = cache.pages_seen ? pages / cache.pages_seen : 0;
      cell.style.background = 'rgba(204,102,0,' + 0.7 * share + ')';
    }
  });
  const note = document.createElement('p');
  note.textContent = (cache.bytes_kept / 1e6).toFixed(2) + ' MB of cache kept, ' +
                     (cache.bytes_saved / 1e6).toFixed(2) + ' MB freed early';
  $('cache').replaceChildren(note, table);
}
// What a field lacks; empty: nothing. Texts that are no numbers would be sent as 0.
const lacking = () =>
    !($('tokens').valueAsNumber >= 1) ? 'tokens: a number of at least 1 is needed' :
    isNaN($('temperature').valueAsNumber) ? 'temperature: a number is needed' : '';
async function write() {
  $('text').textContent = $('speed').textContent = '';
  $('cache').replaceChildren();
  $('error').textContent = lacking();
  if (lacking()) return;
  controller = new AbortController();
  $('go').disabled = true; $('stop').disabled = false;
  let pieces = 0, first = 0, usage = null;
  try {
    const response = await fetch('/v1/completions', {
      method: 'POST', headers: headers(), signal: controller.signal,
      body: JSON.stringify({prompt: $('prompt').value, max_tokens: +$('tokens').value,
                            temperature: +$('temperature').value, stream: true,
                            stream_options: {include_usage: true}, cache_stats: true})});
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      const events = (rest + value).split('\n\n');
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith('data: ') || event === 'data: [DONE]') continue;
        const chunk = JSON.parse(event.slice(6));
        if (chunk.error) throw new Error(chunk.error.message);
        if (chunk.usage) usage = chunk.usage;
        for (const choice of chunk.choices) {
          $('text').textContent += choice.text;
          if (choice.cache) showCache(choice.cache);
        }
        if (!first) first = performance.now();
        ++pieces;
        const seconds = (performance.now() - first) / 1000;
        const count = usage ? usage.completion_tokens : pieces;
        // The first token's time is the prompt's.
        $('speed').textContent = count === 1 ? '1 token' : count + ' tokens' +
            (count > 1 && seconds > 0 ? ', ' + ((count - 1) / seconds).toFixed(1) + ' tokens/s' : '');
      }
    }
  } catch (error) {
    if (error.name !== 'AbortError') $('error').textContent = error.message;
  }
  $('go').disabled = false; $('stop').disabled = true;
}
$('go').onclick = write;
$('stop').onclick = () => controller.abort();
</script>
</html>
)html";

}  // namespace reynard::serving
