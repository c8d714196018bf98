// Links to the page of a head in the atlas: a view of this page, or another file of a site.

import { make } from "./dom.js";
import { hasAnswer, headFile } from "./api.js";
import { getState, setState, writeLink } from "./state.js";

const isNamed = (name) => /^\d+\.\d+$/.test(name);
const changesTo = (name) => ({ screen: "atlas", head: name, context: "0" });

function canOpen(name) {
  return isNamed(name) && (headFile(name) !== null || hasAnswer(`atlas/${name}`, {}));
}

export function openHead(name) {
  if (!canOpen(name)) return;
  const file = headFile(name);
  if (file === null) {
    setState(changesTo(name), { isStep: true });
    scrollTo(0, 0);
  } else location.href = file;
}

// Plain text if the page of the head is not in this file.
export function headLink(name, attributes, ...children) {
  if (!canOpen(name)) return make("span", attributes, children);
  return make(
    "a",
    {
      ...attributes,
      href: headFile(name) ?? `#${writeLink({ ...getState(), ...changesTo(name) })}`,
      onclick: (event) => {
        if (headFile(name) !== null || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        openHead(name);
      },
    },
    children,
  );
}
