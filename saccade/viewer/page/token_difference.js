// The tokens of each of two texts that the other does not have.

const MOST = 1200; // tokens per side: the table below has their product

// Two lists of booleans: true where a token has no partner (longest common subsequence).
export function onlyHere(left, right) {
  if (left.length > MOST || right.length > MOST)
    return [left.map(() => false), right.map(() => false)];
  const width = right.length + 1,
    length = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i -= 1) {
    for (let j = right.length - 1; j >= 0; j -= 1) {
      length[i * width + j] =
        left[i] === right[j]
          ? length[(i + 1) * width + j + 1] + 1
          : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const marks = [left.map(() => true), right.map(() => true)];
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) {
      marks[0][i] = marks[1][j] = false;
      i += 1;
      j += 1;
    } else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return marks;
}
