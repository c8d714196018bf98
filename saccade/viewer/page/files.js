// Downloads: JSON, SVG, PNG, or a file of the server.

export function download(name, blob) {
  const link = document.createElement("a"),
    address = URL.createObjectURL(blob);
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function downloadJson(name, value) {
  download(name, new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }));
}

// A picture as a file, with a background, since SVG has none.
export function svgText(svg, background) {
  const copy = svg.cloneNode(true),
    { width, height } = svg.viewBox.baseVal;
  const backdrop = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: background }))
    backdrop.setAttribute(name, value);
  copy.prepend(backdrop);
  for (const node of [copy, ...copy.querySelectorAll("*")])
    for (const name of [...node.attributes].map((each) => each.name))
      if (/^(role|tabindex|aria-|data-)/.test(name)) node.removeAttribute(name);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

export async function pngOf(svg, background, scale = 2) {
  const text = svgText(svg, background),
    { width, height } = svg.viewBox.baseVal;
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
