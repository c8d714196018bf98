"""How the page of a trace over a document looks: its words, shaded by what a step read of them."""

DOCUMENT_STYLE = """
.document{max-width:72ch;line-height:1.9}
.document span{border-radius:3px;padding:1px 2px;
background:color-mix(in oklab,var(--hi) calc(var(--v)*100%),transparent)}
.document span.dark{color:var(--paper)}
.asked{max-width:72ch;margin:0 0 10px;line-height:1.9}
.asked button{border:0;border-radius:3px;padding:1px 3px;background:none;color:var(--ink);
font:inherit;cursor:pointer}
.asked button[aria-pressed=true]{background:var(--here);color:var(--here-ink)}
.asked button:focus-visible{outline:2px solid var(--ink)}
"""

# `make` and `shade` are those of the page. A shade tells a weight beside the largest of its step.
DOCUMENT_SCRIPT = """
const closes = word => /^[.,;:!?)\\]']$/.test(word);

function drawDocument(trace) {
  const section = make("section"), text = make("p", undefined, "document");
  const asked = make("p", undefined, "asked"), said = make("p", "", "said");
  section.append(make("h2", trace.title || trace.kind));
  const words = trace.memory.map((word, at) => {
    const node = make("span", word);
    text.append(at && !closes(word) ? " " : "", node);
    return node;
  });
  const rows = trace.weights[0];
  const mean = trace.memory.map(
    (_, at) => rows.reduce((sum, row) => sum + row[at], 0) / rows.length);
  function show(weights, name) {
    const most = Math.max(...weights, 1e-9);
    words.forEach((node, at) => {
      node.style.setProperty("--v", shade(weights[at] / most));
      node.classList.toggle("dark", weights[at] / most > 0.6);
      node.title = weights[at].toFixed(3);
    });
    const best = weights.map((weight, at) => [weight, at]).sort((a, b) => b[0] - a[0]).slice(0, 4)
      .filter(pair => pair[0] > 0);
    said.replaceChildren(make("b", name), " reads " + best.map(
      pair => trace.memory[pair[1]] + " " + pair[0].toFixed(2)).join(", "));
  }
  const choices = rows.length > 1 ? [["all", mean]] : [];
  trace.steps.forEach((step, at) => choices.push([step, rows[at]]));
  const buttons = choices.map(([name, weights], at) => {
    const button = make("button", name);
    button.addEventListener("click", () => choose(at));
    asked.append(at ? " " : "", button);
    return button;
  });
  function choose(at) {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", place === at));
    show(choices[at][1], choices[at][0]);
  }
  section.append(asked, text, said);
  document.querySelector("main").append(section);
  choose(0);
}
"""
