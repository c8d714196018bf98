// Items one at a time, in groups: buttons, a choice of the group, and the arrow keys or j and k.

import { announce, choice, make } from "./dom.js";

// groups: [{name, items}]; draw(item) -> nodes; describe(item) -> text for screen readers; onstep(at) gets the number of
// the item among all.
export function stepper({ title, groups, at = 0, draw, describe, onstep = () => {} }) {
  const all = groups.flatMap((group, number) =>
    group.items.map((item, index) => ({ item, index, group, number })),
  );
  const bar = make("div", { class: "controls step-bar" }),
    body = make("div", { class: "step-body" });
  const node = make(
    "div",
    {
      class: "stepper",
      role: "group",
      tabindex: 0,
      "aria-label": `${title}. Arrow keys, or j and k, step through them.`,
    },
    bar,
    body,
  );
  let current = -1;
  const back = button("Previous", () => step(-1)),
    forward = button("Next", () => step(1)),
    where = make("span", { class: "number" });
  const names = choice(
    groups.map(({ name }, number) => [String(number), name]),
    "0",
    (number) => to(all.findIndex((each) => each.number === Number(number)), true),
    `${title}: which`,
  );
  bar.append(...(groups.length > 1 ? [names] : []), back, where, forward);

  function step(by) {
    to(Math.max(0, Math.min(all.length - 1, current + by)), true);
  }
  function to(wanted, isStep = false) {
    const next = all[wanted] ? wanted : 0;
    if (next === current || !all.length) return;
    current = next;
    const { item, index, group, number } = all[current];
    names.value = String(number);
    where.textContent = `${index + 1} of ${group.items.length}`;
    back.setAttribute("aria-disabled", String(current === 0)); // a disabled button would lose the focus
    forward.setAttribute("aria-disabled", String(current === all.length - 1));
    body.replaceChildren(...[draw(item)].flat(Infinity).filter(Boolean));
    if (!isStep) return;
    announce(`${group.name}, ${index + 1} of ${group.items.length}: ${describe(item)}`);
    onstep(current);
  }
  node.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, k: -1, j: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    // Inside of a choice these keys have another meaning, and the arrows inside of a list of tokens.
    if (event.target.closest("select") || (event.target.closest(".token-row") && event.key.length > 1)) return;
    event.preventDefault();
    step(by);
  });
  node.to = (wanted) => to(wanted);
  to(at);
  return node;
}

function button(text, onclick) {
  return make("button", { type: "button", class: "quiet", onclick }, text);
}
