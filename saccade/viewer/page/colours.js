// Colour scales. One hue from pale to dark (dark theme: from dim to bright), so that lightness alone encodes
// the value; two hues that no kind of colour blindness confuses where a value has a sign.

const cached = { theme: null, names: {}, ramps: {} };

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// A colour of the style sheet by its name, for drawing.
export function themeColour(name) {
  const theme = isDark() ? "dark" : "light";
  if (cached.theme !== theme) Object.assign(cached, { theme, names: {}, ramps: {} });
  cached.names[name] ??= getComputedStyle(document.documentElement)
    .getPropertyValue(`--${name}`)
    .trim();
  return cached.names[name];
}

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function mixed(stops, at) {
  const position = at * (stops.length - 1),
    low = Math.min(stops.length - 2, Math.floor(position)),
    share = position - low;
  return stops[low].map((part, i) => Math.round(part + share * (stops[low + 1][i] - part)));
}

// 256 colours of a ramp, as [r, g, b] and as text, cached: a grid has a hundred thousand cells.
function ramp(names) {
  themeColour("paper"); // clears the cache after a change of theme
  const key = names.join();
  if (!cached.ramps[key]) {
    const stops = names.map((name) => rgb(themeColour(name)));
    const parts = Array.from({ length: 256 }, (_, i) => mixed(stops, i / 255));
    cached.ramps[key] = { parts, texts: parts.map(css), textColours: parts.map(readable) };
  }
  return cached.ramps[key];
}

const ONE_WAY = ["ramp-0", "ramp-1", "ramp-2", "ramp-3", "ramp-4"];
const TWO_WAY = ["below-2", "below-1", "ramp-0", "above-1", "above-2"];

// Maps values to colours; `root` takes the square root, which spreads small values.
export function scaleOf(
  values,
  { signed: wantsSign = false, root = false, low = null, high = null } = {},
) {
  const known = values.filter((value) => Number.isFinite(value));
  const least = low ?? Math.min(0, ...known),
    most = high ?? Math.max(...known, least + 1e-9);
  const isSigned = wantsSign && least < 0 && -least > most / 20;
  const reach = Math.max(Math.abs(least), Math.abs(most)) || 1;
  const bend = (share) => (root ? Math.sqrt(Math.max(0, share)) : Math.max(0, share));
  const share = (value) => {
    if (isSigned) return 0.5 + 0.5 * Math.sign(value) * bend(Math.min(1, Math.abs(value) / reach));
    return bend(Math.min(1, (value - least) / (most - least || 1)));
  };
  const at = (value) => Math.round(255 * share(value)),
    colours = () => ramp(isSigned ? TWO_WAY : ONE_WAY);
  return {
    isSigned,
    low: isSigned ? -reach : least,
    high: isSigned ? reach : most,
    parts: (value) => colours().parts[at(value)],
    colour: (value) => (Number.isFinite(value) ? colours().texts[at(value)] : themeColour("none")),
    textColour: (value) =>
      Number.isFinite(value) ? colours().textColours[at(value)] : themeColour("soft"),
  };
}

function css(parts) {
  return `rgb(${parts.join()})`;
}

// Black or white, whichever has more contrast (WCAG relative luminance).
function readable(parts) {
  const [r, g, b] = parts.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

// Lines of a chart differ in hue, lightness and dash.
export function lineColour(at) {
  return themeColour(`line-${at % 6}`);
}

export function lineDash(at) {
  return ["", "6 3", "2 3", "8 3 2 3", "", "4 4"][at % 6];
}
