"""How the page of a trace looks, and how it is drawn."""

# One hue from pale to dark (dark mode: from dim to bright): lightness alone tells the value.
STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--paper:#fff;--lo:#eef3f9;--hi:#08336e;--here:#ffe08a;
--here-ink:#3b2d00;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf2;--soft:#98a4b3;--paper:#12161c;--lo:#1a222e;
--hi:#ffd75e;--here:#ffd75e;--here-ink:#241c00}}
body{margin:0 auto;padding:20px;max-width:1180px;color:var(--ink);background:var(--paper);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:19px;margin:0 0 14px}
h2{font-size:14px;font-weight:600;margin:22px 0 8px;color:var(--soft)}
.trace{display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start}
.scroll{overflow:auto;max-width:100%}
table{border-collapse:separate;border-spacing:1px;font-size:13px}
th{font-weight:400;white-space:pre;padding:1px 6px;border-radius:3px}
thead th{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;padding:6px 1px;
vertical-align:bottom}
tbody th{text-align:right}
td{width:22px;min-width:22px;height:22px;padding:0;border-radius:3px;
background:color-mix(in oklab,var(--hi) calc(var(--v)*100%),var(--lo))}
td:hover,td.on{outline:2px solid var(--soft)}
th.on{background:var(--here);color:var(--here-ink)}
tbody th{cursor:default}
.said{min-height:1.5em;margin:6px 0 0;color:var(--soft);font-variant-numeric:tabular-nums}
.said b{color:var(--ink)}
.views{display:flex;flex-wrap:wrap;gap:10px;max-width:520px}
.views button{border:2px solid transparent;border-radius:6px;background:none;color:var(--soft);
font:12px system-ui,sans-serif;padding:4px;cursor:pointer;text-align:center}
.views button[aria-pressed=true]{border-color:var(--here);color:var(--ink)}
.views button:focus-visible{outline:2px solid var(--ink)}
.views canvas{display:block;width:96px;height:96px;image-rendering:pixelated;border-radius:3px;
margin-bottom:3px}
"""

SCRIPT = """
"use strict";
const make = (name, text, kind) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};
const shade = weight => Math.min(1, Math.max(0, weight)).toFixed(4);

function draw(trace) {
  const section = make("section"), said = make("p", "", "said"), table = make("table");
  section.append(make("h2", trace.title ? trace.kind + ": " + trace.title : trace.kind));
  const head = make("thead"), top = make("tr"), body = make("tbody");
  top.append(make("th", ""));
  const columns = trace.memory.map(label => make("th", label));
  const rows = trace.steps.map(label => make("th", label));
  top.append(...(trace.upright ? rows : columns));
  head.append(top);
  const cells = rows.map((name, step) => {
    name.tabIndex = 0;
    name.dataset.step = step;
    return trace.memory.map((_, at) => {
      const cell = make("td");
      cell.dataset.step = step;
      cell.dataset.at = at;
      return cell;
    });
  });
  (trace.upright ? columns : rows).forEach((name, place) => {
    const line = make("tr");
    line.append(name, ...(trace.upright ? cells.map(step => step[place]) : cells[place]));
    body.append(line);
  });
  table.append(head, body);

  let view = 0;
  function show(chosen) {
    view = chosen;
    cells.forEach((line, step) => line.forEach((cell, at) => {
      const weight = trace.weights[view][step][at];
      cell.style.setProperty("--v", shade(weight));
      cell.title = trace.steps[step] + " \\u2190 " + trace.memory[at] + "  " + weight.toFixed(3);
    }));
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === view));
    say();
  }
  function say(step, at) {
    rows.forEach((name, place) => name.classList.toggle("on", place === step));
    const weights = step === undefined ? [] : trace.weights[view][step];
    const most = weights.map((weight, place) => [weight, place]).sort((a, b) => b[0] - a[0])
      .slice(0, 4).filter(pair => pair[0] > 0);
    const marked = at === undefined ? most.slice(0, 1).map(pair => pair[1]) : [at];
    columns.forEach((name, place) => name.classList.toggle("on", marked.includes(place)));
    said.replaceChildren();
    if (step === undefined) {
      said.textContent = "Point at a row to see what it read.";
      return;
    }
    said.append(make("b", trace.steps[step]));
    if (at === undefined) {
      said.append(" reads " + most.map(
        pair => trace.memory[pair[1]] + " " + pair[0].toFixed(2)).join(", "));
    } else {
      said.append(" \\u2190 ", make("b", trace.memory[at]), " " + weights[at].toFixed(3));
    }
  }
  function pointed(event) {
    const data = event.target.dataset;
    if (data.step === undefined) return;
    say(+data.step, data.at === undefined ? undefined : +data.at);
  }
  table.addEventListener("mouseover", pointed);
  table.addEventListener("focusin", pointed);
  table.addEventListener("mouseleave", () => say());

  const buttons = trace.views.map((name, at) => {
    const button = make("button"), small = make("canvas");
    small.width = (trace.upright ? trace.steps : trace.memory).length;
    small.height = (trace.upright ? trace.memory : trace.steps).length;
    paint(small, trace.weights[at], trace.upright);
    button.append(small, name);
    button.addEventListener("click", () => show(at));
    return button;
  });
  const parts = make("div", undefined, "trace"), main = make("div"), scroll = make("div");
  scroll.className = "scroll";
  scroll.append(table);
  main.append(scroll, said);
  parts.append(main);
  if (buttons.length > 1) {
    const views = make("div", undefined, "views");
    views.append(...buttons);
    parts.append(views);
  }
  section.append(parts);
  document.querySelector("main").append(section);
  show(0);
}

function paint(canvas, weights, upright) {
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  pen.fillStyle = style.getPropertyValue("--lo");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.getPropertyValue("--hi");
  weights.forEach((line, step) => line.forEach((weight, at) => {
    pen.globalAlpha = +shade(weight);
    pen.fillRect(...(upright ? [step, at] : [at, step]), 1, 1);
  }));
}

JSON.parse(document.getElementById("traces").textContent).forEach(
  trace => trace.heat ? overlay(trace)
    : trace.kind === "document" ? drawDocument(trace) : draw(trace));
"""
