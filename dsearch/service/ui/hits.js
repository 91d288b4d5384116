// One hit as elements. Whatever comes from a document is set as textContent, never as markup.

import { partsInWords, percent, pieces, snippet } from "./words.js";

const SNIPPET = 320; // characters

export function hitElement(hit, query) {
  const item = element("li", "hit");
  item.tabIndex = 0;
  const title = element("h2");
  title.append(...marked(hit.title || hit.id, query));
  item.append(title);
  if (hit.title && hit.title !== hit.id) item.append(element("div", "id", hit.id));
  item.append(attention(hit));
  if (hit.text) item.append(...body(hit.text, query, hit.passage));
  item.append(element("p", "parts", partsInWords(hit)));
  return item;
}

// Of a long document the passage that was found is shown first.
function body(text, query, passage) {
  const flat = flatten(text);
  const near = passage ? flatten(passage.text) : flat;
  const found = snippet(near, query, SNIPPET);
  const cut = passage && passage.start > 0 && !found.startsWith("…");
  const short = cut ? `… ${found}` : found;
  const shown = element("p", "text");
  shown.append(...marked(short, query));
  if (short === flat) return [shown];
  const more = element("button", "more", "Show all");
  more.type = "button";
  more.setAttribute("aria-expanded", "false");
  more.addEventListener("click", () => {
    const open = more.getAttribute("aria-expanded") !== "true";
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Show less" : "Show all";
    shown.replaceChildren(...marked(open ? text : short, query));
  });
  return [shown, more];
}

function flatten(text) {
  return text.replace(/\s+/g, " ").trim();
}

function attention(hit) {
  const box = element("div", "attention");
  const bar = element("div", "bar");
  bar.style.setProperty("--weight", String(Math.min(1, Math.max(0, hit.weight))));
  const share = element("span", "share", percent(hit.weight));
  share.title = "share of the attention";
  bar.setAttribute("aria-hidden", "true");
  const said = element("span", "unseen", "of the attention");
  share.append(" ", said);
  box.append(bar, share);
  return box;
}

function marked(text, query) {
  return pieces(text, query).map((piece) =>
    piece.marked ? element("mark", "", piece.text) : document.createTextNode(piece.text));
}

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
