// The metrics of an atlas: what each means, how it is written, which axes are logarithmic.

import { brief, fixed, percent, signed, ticks } from "./number_format.js";

const nats = (value) => `${brief(value)} nats`;
const METRICS = {
  layer: { about: "depth of the head" },
  head: { about: "number of the head in its layer" },
  kl: {
    about: "mean effect: KL of the prediction with the head from that without it, in nats",
    isLog: true,
    format: nats,
  },
  kl_median: { about: "median effect over the positions, in nats", isLog: true, format: nats },
  kl_95: { about: "95% of the positions have a smaller effect, in nats", isLog: true, format: nats },
  matters: {
    about: "share of positions where the prediction moves by more than 0.01 nats without the head",
    format: percent,
  },
  on_next: {
    about: "mean fall of the log-probability of the text's next token without the head, in nats",
    format: (value) => `${signed(value, 4)} nats`,
  },
  lens_kl: { about: "mean KL of its lens from the baseline lens, in nats", isLog: true, format: nats },
  agreement: {
    about: "mean correlation of the lens's prediction with the exact effect",
    format: signed,
  },
  quality: {
    about: "share of the baseline lens's KL that its lens removes on held-out text",
    format: percent,
  },
  first: { about: "mean attention weight on the first position", format: percent },
  self_weight: { about: "mean attention weight on the query's own position", format: percent },
  previous: { about: "mean attention weight on the position before", format: percent },
  induction: {
    about: "mean attention weight on keys just after earlier occurrences of the query's token",
    format: percent,
  },
  entropy: { about: "entropy of the attention weights, in nats", format: (value) => fixed(value) },
  distance: {
    about: "mean distance of the keys in tokens, the first position left out",
    format: (value) => `${brief(value)} tokens`,
  },
  distance_variance: { about: "variance of the distance of the keys", isLog: true },
};
export const ROLE = "role.";
const OF_LOOK = [
  ...["first", "self_weight", "previous", "induction"],
  ...["entropy", "distance", "distance_variance"],
];
const OF_EFFECT = ["kl", "kl_median", "kl_95", "matters", "on_next"];
const OF_LENS = ["lens_kl", "agreement", "quality"];
export const GROUPS = { effect: OF_EFFECT, lens: OF_LENS, look: OF_LOOK };

// Every other metric is the score of a role: role.induction.
export function aboutMetric(name) {
  return METRICS[name]?.about ?? `score of the ${metricName(name)} in its published test`;
}

export function metricName(name) {
  return name.replace(/^role\./, "role ").replaceAll("_", " ");
}

export function formatMetric(name, value) {
  if (value === null || value === undefined) return "–";
  return (METRICS[name]?.format ?? brief)(value);
}

export function isLogMetric(name) {
  return METRICS[name]?.isLog ?? false;
}

export function rolesAmong(metrics) {
  return metrics.filter((name) => name.startsWith(ROLE)).map((name) => name.slice(ROLE.length));
}

// An axis over the known values: {ticks, text, share(value) -> 0 to 1}. A logarithmic one starts at its least positive
// value.
export function axisOf(name, values) {
  const known = values.filter((value) => Number.isFinite(value));
  if (isLogMetric(name) && known.some((value) => value > 0)) return logAxis(known);
  const least = Math.min(...known, Infinity),
    most = Math.max(...known, -Infinity);
  const [low, high] = known.length ? [least, most > least ? most : least + 1] : [0, 1];
  const step = (high - low) * 0.04;
  return {
    ticks: ticks(low, high, 7),
    text: (value) => brief(value),
    share: (value) => (value - low + step) / (high - low + 2 * step),
  };
}

function logAxis(values) {
  const positive = values.filter((value) => value > 0).map(Math.log10);
  const low = Math.min(...positive) - 0.08,
    high = Math.max(...positive, low + 0.3) + 0.08;
  const powers = [];
  for (let power = Math.ceil(low); power <= high; power += 1) powers.push(10 ** power);
  const around = [Math.floor(low), Math.ceil(low), Math.ceil(low) + 1],
    between = powers.length < 3 ? around.flatMap((power) => [2 * 10 ** power, 5 * 10 ** power]) : [];
  const isIn = (value) => Math.log10(value) >= low && Math.log10(value) <= high,
    shown = [...powers, ...between].filter(isIn);
  return {
    ticks: shown.sort((a, b) => a - b),
    text: (value) => (value < 1e-3 ? value.toExponential(0).replace("-", "−") : brief(value)),
    share: (value) => (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low),
  };
}
