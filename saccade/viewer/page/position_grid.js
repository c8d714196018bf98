// The grid of positions and layers: a cell shows the most likely token.

import { dotted, make } from "./dom.js";
import { isOffline } from "./api.js";
import { scaleOf } from "./colours.js";
import { fixed, percent } from "./number_format.js";
import { grid } from "./grid.js";
import { positionPages, tokensOf } from "./position_pages.js";
import { getState, setState } from "./state.js";
import { getStatus } from "./status.js";

const NOTE =
  "A cell shows the most likely token. Point at it for the top ten; choose it to pin its token and follow it below.";

export async function positionGrid(state, question, colouredBy) {
  const pages = await positionPages(question, () => frame.redraw()),
    { tokens, layers, at } = pages;
  const frame = grid({
    rows: tokens.length,
    columns: layers.length + 1,
    least: 38,
    most: 92,
    cellHeight: 26,
    left: innerWidth < 600 ? 74 : 108,
    title: "Tokens by position and layer",
    cursor: { row: rowOf(state, tokens), column: layers.length },
    scale: scaleFor(colouredBy),
    cell: (row, column) => cellFor(at(row, column), colouredBy),
    rowLabel: (row) => `${dotted(tokens[row])} ${row}`,
    columnLabel: (column) => (column === layers.length ? "out" : String(layers[column])),
    label: (row, column) =>
      `after token ${row} ${dotted(tokens[row])}, ${layerName(layers[column])}: ${summary(at(row, column))}`,
    onchoose: (row, column) => choose(pages, row, column),
    tip: (row, column) =>
      topTen(at(row, column), `after ${dotted(tokens[row])}, ${layerName(layers[column])}`),
  });
  frame.classList.add("tall");
  return [make("div", { class: "picture" }, frame), make("p", { class: "note" }, NOTE)];
}

function scaleFor(colouredBy) {
  if (colouredBy !== "entropy") return scaleOf([], { low: 0, high: 1, root: true });
  return scaleOf([], { low: 0, high: Math.log(getStatus()?.model?.d_vocab || 50000) });
}

function cellFor(cell, colouredBy) {
  if (!cell) return null;
  const value = colouredBy === "entropy" ? (cell.entropy ?? NaN) : cell.values[0];
  return { value, text: dotted(cell.texts[cell.ids[0]]) };
}

function layerName(layer) {
  return layer === undefined ? "the output" : `layer ${layer}`;
}

function summary(cell) {
  if (!cell) return "not read yet";
  return tokensOf(cell)
    .slice(0, 3)
    .map((token) => `${dotted(token.text)} ${percent(token.value, 0)}`)
    .join(", ");
}

function choose({ tokens, at }, row, column) {
  const cell = at(row, column),
    pins = cell ? { pins: withPin(cell.texts[cell.ids[0]]) } : {};
  setState({ at: row === tokens.length - 1 ? "-1" : String(row), ...pins });
}

function withPin(token) {
  const { pins } = getState(),
    tokens = pins ? pins.split("|") : [];
  return tokens.includes(token) || isOffline() ? pins : [...tokens, token].slice(-8).join("|");
}

function rowOf(state, tokens) {
  const at = Number(state.at);
  return at < 0 ? tokens.length + at : Math.min(at, tokens.length - 1);
}

function topTen(cell, where) {
  if (!cell) return [make("p", {}, "Not read yet.")];
  const row = (token) =>
    make(
      "li",
      {},
      make("span", { class: "token" }, dotted(token.text)),
      make("span", { class: "number" }, percent(token.value)),
    );
  const entropy = cell.entropy === null ? "" : `, entropy ${fixed(cell.entropy)}`;
  return [
    make("p", { class: "soft" }, where, entropy),
    make("ol", { class: "tip-list" }, tokensOf(cell).map(row)),
  ];
}
