// Finds heads: by token, role, range of a metric, likeness to a head, or the source where they matter.

import { choice, make } from "./dom.js";
import { isOffline, request } from "./api.js";
import { metricName, ROLE, rolesAmong } from "./atlas_metrics.js";

// The query of a state; none if the link is damaged.
export function queryOf({ find }) {
  try {
    const found = JSON.parse(find || "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

// A form; onquery(text) is called with the query as it stands in a link, onclear() when all heads are asked for.
export function finderForm(overview, query, { onquery, onclear }) {
  const roles = rolesAmong(overview.metrics),
    isSuppressed = query.suppressed !== undefined;
  const kind = choice(
    [
      ["token", "promotes"],
      ["suppressed", "suppresses"],
    ],
    isSuppressed ? "suppressed" : "token",
    () => token.value && submit(),
    "promotes or suppresses",
  );
  const token = field("token", query.token ?? query.suppressed, 10, "a token"),
    where = field("range of metrics", (query.where ?? []).join(", "), 18, "kl>0.01, first<0.5"),
    like = field("like the head", query.like, 6, "3.2");
  const role = pick("role", roles, query.role, (name) => metricName(name)),
    source = pick("matters in", overview.sources, query.matters_in, (name) => name),
    other = pick("than in", overview.sources, query.not_in, (name) => name, "any other");
  // What only a server can answer is not offered without one.
  const hasTokens = !isOffline() || overview.heads.some((head) => head.promotes),
    hasSources = !isOffline() && overview.sources.length > 1;
  function submit(event) {
    event?.preventDefault();
    const conditions = where.value
      .split(",")
      .map((each) => each.trim())
      .filter(Boolean);
    const asked = {
      [kind.value]: token.value || undefined,
      role: role.value || undefined,
      where: conditions.length ? conditions : undefined,
      like: like.value.trim() || undefined,
      matters_in: source.value || undefined,
      not_in: (source.value && other.value) || undefined,
    };
    onquery(Object.values(asked).some((each) => each !== undefined) ? JSON.stringify(asked) : "");
  }
  return make(
    "form",
    { class: "controls finder", onsubmit: submit, onchange: submit, "aria-label": "Find heads" },
    hasTokens ? make("span", { class: "inline" }, kind, token) : null,
    roles.length ? inline("role ", role) : null,
    inline("range ", where),
    isOffline() ? null : inline("like ", like),
    hasSources ? inline("matters more in ", source) : null,
    hasSources && overview.sources.length > 2 ? inline("than in ", other) : null,
    make("button", { type: "submit", class: "quiet" }, "Find"),
    make("button", { type: "button", class: "quiet", onclick: onclear }, "All"),
  );
}

function field(label, value, size, placeholder) {
  return make("input", {
    type: "text",
    size,
    placeholder,
    value: value ?? "",
    "aria-label": label,
    spellcheck: "false",
    maxlength: 200,
  });
}

function pick(label, names, chosen, format, none = "any") {
  return choice(
    [["", none], ...names.map((name) => [name, format(name)])],
    chosen ?? "",
    () => {},
    label,
  );
}

function inline(...children) {
  return make("label", { class: "inline" }, children);
}

// The heads that a query finds, best first: {what, rows: [{name, value}]}; null without a query.
export async function findHeads(overview, query) {
  if (!Object.values(query).some((value) => value !== undefined && value?.length !== 0)) return null;
  if (isOffline()) return findLocally(overview, query);
  const found = await request("find", query);
  return { what: found[0]?.what ?? "", rows: found.map(({ name, value }) => ({ name, value })) };
}

const COMPARISONS = {
  ">=": (value, bound) => value >= bound,
  "<=": (value, bound) => value <= bound,
  ">": (value, bound) => value > bound,
  "<": (value, bound) => value < bound,
};

// In a file: the first tokens of each head are in the overview, and its metrics.
function findLocally(overview, { token, suppressed, role, where = [] }) {
  const ranges = where.map((condition) => {
    const found = /^([\w.-]+?)\s*(>=|<=|>|<)\s*(\S+)$/.exec(condition);
    if (!found || Number.isNaN(Number(found[3])) || !overview.metrics.includes(found[1]))
      throw Object.assign(new Error(`expected a metric and a bound, such as kl>0.01, got “${condition}”`), {
        status: 422,
        hint: `metrics are ${overview.metrics.join(", ")}`,
      });
    return (head) => head[found[1]] !== null && COMPARISONS[found[2]](head[found[1]], Number(found[3]));
  });
  const wanted = token ?? suppressed,
    key = token === undefined ? "suppresses" : "promotes";
  const isToken = (text) => text === wanted || (wanted === wanted.trim() && text.trim() === wanted);
  const shareOf = (head) =>
    (head[key] ?? []).reduce((sum, [text, share]) => sum + (isToken(text) ? share : 0), 0);
  const rank = wanted !== undefined ? shareOf : role !== undefined ? (head) => head[ROLE + role] : (head) => head.kl;
  const what = wanted !== undefined ? `share of effect on “${wanted}”` : role !== undefined ? `role ${role}` : "kl";
  const rows = overview.heads
    .filter((head) => ranges.every((holds) => holds(head)))
    .map((head) => ({ name: head.name, value: rank(head) ?? null, isToken: !wanted || shareOf(head) > 0 }))
    .filter(({ value, isToken: holds }) => value !== null && holds);
  return { what, rows: rows.sort((a, b) => b.value - a.value) };
}
