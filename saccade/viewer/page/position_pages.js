// What is said at each position and layer, some positions at a time: what is looked at is asked for.

import { ask } from "./ask.js";
import { settled } from "./place.js";

const CHUNK = 32; // positions asked for at a time

// at(row, column) gives the ids and probabilities of a cell, or null until onnews() is called.
export async function positionPages(asked, onnews) {
  const first = await ask("positions", { ...asked, first: 0, count: CHUNK });
  const { tokens, layers } = first,
    pages = new Map([[0, first]]),
    wanted = new Set();
  const fetchWanted = settled(() => {
    for (const number of wanted) if (!pages.has(number)) fetchPage(asked, number, pages, onnews);
    wanted.clear();
  }, 120);
  const at = (row, column) => {
    const number = Math.floor(row / CHUNK),
      page = pages.get(number);
    if (page) return cellOf(page, row - page.first, column);
    wanted.add(number);
    fetchWanted();
    return null;
  };
  return { tokens, layers, at };
}

function fetchPage(asked, number, pages, onnews) {
  pages.set(number, null);
  ask("positions", { ...asked, first: number * CHUNK, count: CHUNK }).then(
    (answer) => {
      pages.set(number, answer);
      onnews();
    },
    () => pages.delete(number),
  );
}

// The column after the last layer is the model's own output.
function cellOf(page, row, column) {
  const isOut = column === page.layers.length;
  const { ids, values } = isOut
    ? page.final
    : { ids: page.ids[column], values: page.values[column] };
  return {
    ids: ids[row],
    values: values[row],
    entropy: isOut ? null : page.entropy[column][row],
    texts: page.texts,
  };
}

// All tokens of a cell, likeliest first.
export function tokensOf(cell) {
  return cell.ids.map((id, i) => ({ text: cell.texts[id], value: cell.values[i] }));
}
