// One hit as elements.

import { heatmap } from "./heatmap.js";
import { button, element, table } from "./dom.js";
import { countedWords, partsInWords, pastInWords, percent, pieces, snippet } from "./words.js";

const SNIPPET = 320; // characters

export function hitElement(hit, asked) {
  const query = countedWords(hit, asked);
  const item = element("li", "hit");
  item.tabIndex = 0;
  const title = element("h2");
  title.append(...marked(hit.title || hit.id, query));
  item.append(title);
  const where = whereabouts(hit);
  if (where) item.append(element("div", "id", ...where));
  item.append(attention(hit));
  if (hit.text) item.append(...body(hit, query));
  if (hit.duplicates) item.append(element("p", "parts", `${hit.duplicates} more with the same text`));
  item.append(element("p", "parts", partsInWords(hit)));
  if (hit.explain) item.append(why(hit));
  return item;
}

// Path or id, and the date; a link where the document has an address.
function whereabouts({ id, title, metadata }) {
  const { path, modified, date, url } = metadata ?? {};
  const parts = [];
  if (title && title !== id) parts.push(id);
  if (typeof path === "string" && path !== id && path !== title) parts.push(path);
  const when = [modified, date].find((one) => typeof one === "string");
  if (when) parts.push(when.slice(0, 10));
  const words = parts.map((part, at) => [at ? element("span", "dot-between", " · ") : "", element("span", "", part)]).flat();
  if (typeof url === "string" && /^https?:\/\//.test(url)) {
    const link = element("a", "", "Open");
    link.href = url;
    link.rel = "noreferrer";
    link.target = "_blank";
    words.push(" · ", link);
  }
  return words.length ? words : null;
}

// What was found is shown first: the fragments that the server marked, else the passage, else the words.
function body(hit, query) {
  const flat = flatten(hit.text);
  const fragments = (hit.highlights ?? []).filter((one) => one.field === "text");
  const shown = element("p", "text");
  let short = flat;
  if (fragments.length > 0 && flat.length > SNIPPET) {
    short = null;
    shown.append(...fragments.flatMap((one) => ["… ", ...spanned(one, query)]), " …");
  } else {
    const near = hit.passage ? flatten(hit.passage.text) : flat;
    const found = snippet(near, query, SNIPPET);
    const cut = hit.passage && hit.passage.start > 0 && !found.startsWith("…");
    short = cut ? `… ${found}` : found;
    shown.append(...marked(short, query));
  }
  if (short === flat) return [shown];
  const brief = [...shown.childNodes];
  const more = button("Show all", () => {
    const open = more.getAttribute("aria-expanded") !== "true";
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Show less" : "Show all";
    shown.replaceChildren(...(open ? marked(hit.text, query) : brief));
  }, "more");
  more.setAttribute("aria-expanded", "false");
  return [shown, more];
}

// Each head's part in the score, each word's, and what training changed.
function why(hit) {
  const { explain } = hit;
  const drawer = element("details", "why", element("summary", "", "Why"));
  drawer.addEventListener("toggle", () => {
    if (!drawer.open || drawer.childElementCount > 1) return;
    const heads = explain.dense.map((dense, head) => [
      explain.dense.length > 1 ? `head ${head + 1}` : "head",
      dense.toFixed(4),
      explain.keyword[head].toFixed(4),
      percent(explain.head_weights[head]),
    ]);
    drawer.append(table(["", "meaning", "words", "attention"], heads));
    const terms = Object.entries(explain.terms ?? {});
    if (terms.length > 0) {
      const parts = terms.map(([term, by]) => [term, ...by.map((part) => part.toFixed(4))]);
      drawer.append(table(["word", ...explain.dense.map((_, head) =>
        explain.dense.length > 1 ? `head ${head + 1}` : "part of the score")], parts));
    }
    if (explain.dense.length > 1) {
      drawer.append(heatmap(["weight"], heads.map(([name]) => name), [explain.head_weights], "Attention by head"));
    }
    if (explain.second_stage) {
      const asked = explain.reranker ? `, and ${explain.reranker.toFixed(4)} by its reranker` : "";
      drawer.append(element("p", "", `Second look: ${explain.second_stage.toFixed(4)} of the score${asked}.`));
    }
    if (pastInWords(hit)) drawer.append(element("p", "", pastInWords(hit)));
  });
  return drawer;
}

function flatten(text) {
  return text.replace(/\s+/g, " ").trim();
}

export function attention(hit) {
  const box = element("div", "attention");
  const bar = element("div", "bar");
  bar.style.setProperty("--weight", String(Math.min(1, Math.max(0, hit.weight))));
  const share = element("span", "share", percent(hit.weight));
  share.title = "share of the attention";
  bar.setAttribute("aria-hidden", "true");
  share.append(" ", element("span", "unseen", "of the attention"));
  box.append(bar, share);
  return box;
}

function marked(text, query) {
  return pieces(text, query).map((piece) =>
    piece.marked ? element("mark", "", piece.text) : document.createTextNode(piece.text));
}

// Spans count code points of the whole field, as Python does; the piece begins at `first`. Of a piece by
// meaning, words that are the query's are told apart from words of like meaning.
function spanned({ text, spans, start: first, by }, query) {
  const letters = [...text];
  const made = [];
  let from = 0;
  for (const [start, end] of spans) {
    const word = letters.slice(start - first, end - first).join("");
    const alike = by === "meaning" && !pieces(word, query).some((piece) => piece.marked);
    const mark = element("mark", alike ? "alike" : "", word);
    if (alike) mark.title = "of like meaning";
    made.push(letters.slice(from, start - first).join("").replace(/\s+/g, " "), mark);
    from = end - first;
  }
  return [...made, letters.slice(from).join("").replace(/\s+/g, " ")];
}
