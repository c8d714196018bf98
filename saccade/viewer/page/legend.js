// The colour bar of a map.

import { make } from "./dom.js";

export function legend(scale, format, unit, { hasWeak = false } = {}) {
  const stops = Array.from({ length: 9 }, (_, i) => scale.low + (i / 8) * (scale.high - scale.low));
  const bar = make("span", {
    class: "ramp",
    style: { background: `linear-gradient(to right, ${stops.map(scale.colour).join()})` },
  });
  return make(
    "div",
    { class: "legend" },
    make("span", { class: "number" }, format(scale.low)),
    bar,
    make("span", { class: "number" }, format(scale.high)),
    make("span", {}, unit),
    hasWeak
      ? make("span", { class: "legend-weak" }, make("span", { class: "hatch" }), "weak lens")
      : null,
  );
}
