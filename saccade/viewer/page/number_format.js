// Numbers as text: fixed digits for each kind, a true minus sign.

export function signed(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return (value < 0 ? "−" : "+") + text;
}

export function fixed(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return (value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);
}

export function percent(share, digits = 1) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.5 * 10 ** -(digits + 2)) return `<${(10 ** -digits).toFixed(digits)}%`;
  return `${(100 * share).toFixed(digits)}%`;
}

// Four significant digits, as on the results page.
export function brief(value) {
  if (value === null || value === undefined) return "–";
  const text =
    Math.abs(value) >= 1e5
      ? Math.round(value).toLocaleString("en")
      : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

export function whole(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

// About how many values from low to high, at round steps.
export function ticks(low, high, about = 5) {
  const span = high - low || 1,
    raw = span / about,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step)
    found.push(Number(at.toPrecision(6)));
  return found;
}

// The step between labels, so that they do not overlap.
export function labelStep(room, wanted) {
  return [1, 2, 5, 10, 20, 50, 100, 200, 500].find((step) => room * step >= wanted) ?? 1000;
}
