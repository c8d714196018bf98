// Predictions of each layer at each position, loaded in pages as the user scrolls.

import { request } from "./api.js";
import { debounced } from "./async_view.js";

const CHUNK = 32; // positions per request

// at(row, column) gives the ids and probabilities of a cell, or null until onload() is called.
export async function positionPages(question, onload) {
  const first = await request("positions", { ...question, first: 0, count: CHUNK });
  const { tokens, layers } = first,
    pages = new Map([[0, first]]),
    wanted = new Set();
  const fetchWanted = debounced(() => {
    for (const number of wanted) if (!pages.has(number)) fetchPage(question, number, pages, onload);
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

function fetchPage(question, number, pages, onload) {
  pages.set(number, null);
  request("positions", { ...question, first: number * CHUNK, count: CHUNK }).then(
    (answer) => {
      pages.set(number, answer);
      onload();
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

// All tokens of a cell, most likely first.
export function tokensOf(cell) {
  return cell.ids.map((id, i) => ({ text: cell.texts[id], value: cell.values[i] }));
}
