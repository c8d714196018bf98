// Bars: the share of each bin.

import { make } from "./dom.js";
import { themeColour } from "./colours.js";
import { svgSurface, svgRoot, textWidth } from "./drawing.js";
import { percent } from "./number_format.js";

const TOP = 18,
  BOTTOM = 34,
  HEIGHT = 150;

// bins: [{name, share}]; unit is written below.
export function histogram({ title, bins, unit }) {
  const frame = make("div", { class: "histogram picture" });
  const said = bins
    .filter(({ share }) => share >= 0.005)
    .map(({ name, share }) => `${name}: ${percent(share, 0)}`)
    .join("; ");
  function draw() {
    const width = Math.max(200, frame.clientWidth || 400),
      room = width / bins.length,
      most = Math.max(...bins.map(({ share }) => share), 1e-9);
    const svg = svgRoot(width, HEIGHT, `${title}, ${unit}. ${said}`),
      surface = svgSurface(svg),
      soft = { size: 11, fill: themeColour("soft"), anchor: "middle" };
    const widest = Math.max(...bins.map(({ name }) => textWidth(name, soft))),
      step = Math.ceil((widest + 6) / room);
    bins.forEach(({ name, share }, at) => {
      const high = (HEIGHT - TOP - BOTTOM) * (share / most),
        middle = room * (at + 0.5);
      const top = HEIGHT - BOTTOM - high;
      surface.rect(room * at + 2, top, room - 4, Math.max(high, 1), themeColour("ramp-3"), { radius: 2 });
      if (share >= 0.005 && room >= 26)
        surface.text(percent(share, 0), middle, HEIGHT - BOTTOM - high - 5, soft);
      if (at % step === 0) surface.text(name, middle, HEIGHT - BOTTOM + 13, soft);
    });
    surface.text(unit, width / 2, HEIGHT - 5, soft);
    frame.replaceChildren(svg);
  }
  new ResizeObserver(draw).observe(frame);
  return frame;
}
