// Creates elements. Text is always set as text, never as markup: a token may be "<script>".

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style")
      for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(
    ...children
      .flat(Infinity)
      .filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

// Text with unprintable characters escaped.
export function printable(text) {
  const known = { "\n": "\\n", "\t": "\\t", "\r": "\\r" };
  return text.replace(
    /[\p{C}\u2028\u2029]/gu,
    (c) => known[c] ?? `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`,
  );
}

// A token with visible spaces.
export function dotted(text) {
  return printable(text).replaceAll(" ", "·");
}

// The header of a table; names of number columns start with "#" and are right-aligned.
export function columnNames(names) {
  const cell = (name) =>
    make(
      "th",
      { scope: "col", class: name.startsWith("#") ? "number" : "" },
      name.replace(/^#/, ""),
    );
  return make("thead", {}, make("tr", {}, names.map(cell)));
}

export function labelled(text, control) {
  return make("label", { class: "field" }, make("span", {}, text), control);
}

export function choice(options, chosen, onchange, label) {
  const select = make("select", { "aria-label": label, onchange: () => onchange(select.value) });
  for (const [value, text] of options)
    select.append(make("option", { value, selected: value === chosen }, text));
  return select;
}

// Announces a text to screen readers only.
export function announce(text) {
  const region = document.getElementById("announcement");
  if (region) region.textContent = text;
}

export function panel(title, ...children) {
  return make("section", { class: "panel" }, title ? make("h2", {}, title) : null, children);
}
