// Pictures of numbers, as SVG: curves, bars, points. Each has a text that says the same.

import { drawn, element } from "./dom.js";

const WIDTH = 560, HEIGHT = 200, LEFT = 54, BOTTOM = 26;

// Curves over the same axes: [{name, points: [[x, y], …]}]. `low` and `high` bound the scale from inside, so that
// charts of one measure have one scale.
export function curves(series, { label, low: least = Infinity, high: most = -Infinity }) {
  const points = series.flatMap((one) => one.points);
  const figure = element("figure", "chart");
  if (points.length === 0) return figure;
  const [left, right] = extent(points.map(([x]) => x));
  const [low, high] = extent([...points.map(([, y]) => y), ...[least, most].filter(Number.isFinite)]);
  const x = (value) => LEFT + ((value - left) / (right - left)) * (WIDTH - LEFT - 10);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - 12);
  const picture = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const value of [low, (low + high) / 2, high]) {
    picture.append(
      drawn("line", { x1: LEFT, x2: WIDTH - 10, y1: y(value), y2: y(value), class: "grid" }),
      drawn("text", { x: LEFT - 6, y: y(value) + 4, class: "tick", "text-anchor": "end" }, shortNumber(value)));
  }
  for (const value of [left, right]) {
    picture.append(drawn("text", { x: x(value), y: HEIGHT - 8, class: "tick", "text-anchor": "middle" },
      shortNumber(value)));
  }
  series.forEach((one, number) => {
    const path = one.points.map(([a, b], at) => `${at ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    picture.append(drawn("path", { d: path, class: `curve curve-${number}` }));
    for (const [a, b] of one.points) {
      picture.append(drawn("circle", { cx: x(a), cy: y(b), r: 2.5, class: `dot dot-${number}` }));
    }
  });
  const names = series.flatMap((one, number) => // a blank between, where the line may break
    [" ", element("span", `key key-${number}`, `${one.name} ${span(one.points)}`)]);
  figure.append(picture, element("figcaption", "", `${label}:`, ...names));
  return figure;
}

// From the first value to the last: what a small gain on a large scale does not show.
function span(points) {
  return [...new Set([points[0], points.at(-1)].map(([, y]) => shortNumber(y)))].join(" → ");
}

// Points in two dimensions: [{x, y, colour: 0..1 or a class number, title}]
export function scatter(points, { label, choose }) {
  const [left, right] = extent(points.map((one) => one.x)), [low, high] = extent(points.map((one) => one.y));
  const picture = drawn("svg", { viewBox: "0 0 560 420", role: "img", "aria-label": label });
  for (const one of points) {
    const dot = drawn("circle", {
      cx: 12 + ((one.x - left) / (right - left)) * 536,
      cy: 408 - ((one.y - low) / (high - low)) * 396,
      r: one.large ? 7 : 4,
      class: one.group === undefined ? "point" : `point group-${one.group % 8}`,
    }, drawn("title", {}, document.createTextNode(one.title)));
    if (one.shade !== undefined) dot.style.setProperty("--shade", String(one.shade));
    if (one.shade !== undefined) dot.classList.add("shaded");
    if (choose) dot.addEventListener("click", () => choose(one));
    picture.append(dot);
  }
  return element("figure", "chart", picture, element("figcaption", "", label));
}

// Name, share from 0 to 1 and what to print behind it.
export function bars(rows) {
  const list = element("ul", "bars");
  for (const { name, share, text } of rows) {
    const bar = element("span", "bar");
    bar.style.setProperty("--weight", String(Math.min(1, Math.max(0, share))));
    bar.setAttribute("aria-hidden", "true");
    list.append(element("li", "", element("span", "label", name), bar, element("span", "share", text)));
  }
  return list;
}

function extent(values) {
  const low = Math.min(...values), high = Math.max(...values);
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

export function shortNumber(value) {
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) < 10 ? value.toFixed(3) : value.toFixed(1);
}
