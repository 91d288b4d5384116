// What a collection is and holds: figures, a map of its embeddings, its documents; put in and take out.

import { attend, describe, list, removeDocument, write } from "./api.js";
import { scatter } from "./charts.js";
import { button, element, field, input, problemElement, select, table } from "./dom.js";
import { projected } from "./projection.js";
import { count } from "./words.js";

const PAGE = 20;
const ON_THE_MAP = 300;

export async function show(view, { collection, signal }) {
  const found = await describe(collection);
  view.append(element("h1", "", collection), figures(found));
  const map = element("section", "", element("h2", "", "Map"));
  view.append(map, upload(collection, view), await documents(collection));
  drawMap(map, collection, signal);
}

function figures(found) {
  const rows = [
    ["documents", found.documents.toLocaleString("en")],
    ["waiting to be encoded", found.pending.toLocaleString("en")],
    ["generation", found.generation],
    ["model", found.model],
    ["operation", found.sequence],
    ["language", found.language ?? ""],
    ["encoder", `${found.encoder.name ?? "given embeddings"}, ${found.encoder.dimension} numbers`],
  ];
  if (found.keys) rows.push(["keys", describeKeys(found.keys)]);
  if (found.passages) rows.push(["passages", Object.entries(found.passages).map((one) => one.join(" ")).join(", ")]);
  return table(["", ""], rows, "What it is");
}

function describeKeys(keys) {
  const measured = keys.measured ?? {};
  const recall = measured.recall === undefined ? "" : `, recall@10 ${measured.recall.toFixed(3)}`;
  return `${keys.kind}${recall}`;
}

// ---- the map: embeddings by their first two principal components

async function drawMap(section, collection, signal) {
  const query = input("search", { maxlength: 500, placeholder: "Colour by the attention of a query" });
  const colour = select([["attention", "attention"]]);
  const holder = element("div");
  const form = element("form", "row", query, field("Colour", colour), element("button", "main", "Draw"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    draw();
  });
  colour.addEventListener("change", () => draw());
  section.append(element("p", "quiet",
    "The documents that a query finds first, placed by what distinguishes their embeddings most (two principal " +
    "components). Darker dots hold more of the attention."), form, holder);

  let around = "";

  async function draw() {
    holder.replaceChildren();
    try {
      const asked = query.value.trim() || around;
      const answer = await attend(collection, {
        queries: [asked], mode: "dense", candidates: ON_THE_MAP, include: ["keys"],
      }, signal);
      const [{ ids, weights, keys }] = answer.results;
      const places = projected(keys);
      const groups = colour.value === "attention" ? null : await groupsOf(collection, ids, colour.value);
      const most = Math.max(...weights, 1e-9);
      const chosen = element("p", "quiet");
      holder.append(scatter(ids.map((id, at) => ({
        x: places[at][0],
        y: places[at][1],
        title: groups ? `${id}: ${groups.names[at]}` : `${id}: ${(weights[at] * 100).toFixed(1)} %`,
        large: at === 0,
        ...(groups ? { group: groups.numbers[at] } : { shade: weights[at] / most }),
      })), {
        label: `${count(ids.length, "document")} nearest to “${asked}”`,
        choose: (one) => { chosen.textContent = one.title; },
      }), chosen);
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(problemElement(error));
    }
  }

  const { documents: sample } = await list(collection, { limit: 20 });
  if (sample.length === 0) {
    section.remove();
    return;
  }
  around = (sample[0].title || sample[0].text).slice(0, 80);
  for (const name of fieldsOf(sample)) {
    const option = element("option", "", name);
    option.value = name;
    colour.append(option);
  }
  await draw();
}

function fieldsOf(documents) {
  return [...new Set(documents.flatMap((one) => Object.entries(one.metadata)
    .filter(([, value]) => ["string", "boolean"].includes(typeof value)).map(([name]) => name)))].sort();
}

async function groupsOf(collection, ids, name) {
  const values = new Map();
  let cursor = null;
  for (let page = 0; page < 20; page++) {
    const answer = await list(collection, { limit: 256, cursor });
    for (const one of answer.documents) values.set(one.id, String(one.metadata[name] ?? "none"));
    cursor = answer.next;
    if (!cursor) break;
  }
  const names = ids.map((id) => values.get(id) ?? "not read");
  const different = [...new Set(names)].sort();
  return { names, numbers: names.map((one) => different.indexOf(one)) };
}

// ---- documents

function upload(collection, view) {
  const files = input("file", { multiple: "", accept: ".txt,.md,.jsonl,.json" });
  files.setAttribute("aria-label", "Files to add");
  const said = element("p", "quiet");
  said.setAttribute("role", "status");
  const add = button("Add", async () => {
    try {
      const documents = await documentsOf([...files.files]);
      if (documents.length === 0) throw new Error("Choose text, Markdown or JSONL files first.");
      const written = await write(collection, documents);
      said.textContent = `${written.inserted} new, ${written.updated} changed, ${written.unchanged} unchanged.`;
    } catch (error) {
      said.textContent = error.message;
    }
  }, "main");
  return element("section", "", element("h2", "", "Add documents"), element("div", "row", files, add), said);
}

async function documentsOf(files) {
  const found = [];
  for (const file of files) {
    const text = await file.text();
    if (!/\.jsonl?$/.test(file.name)) {
      found.push({ id: file.name, title: file.name, text });
      continue;
    }
    text.split("\n").forEach((line, number) => {
      if (!line.trim()) return;
      try {
        const { _id, id, title, text: words, metadata, value } = JSON.parse(line);
        found.push({
          id: String(id ?? _id), text: words, title: title ?? "",
          ...(metadata ? { metadata } : {}), ...(value === undefined ? {} : { value }),
        });
      } catch {
        throw new Error(`${file.name}, line ${number + 1}: not JSON.`);
      }
    });
  }
  return found;
}

async function documents(collection) {
  const rows = element("div");
  const more = button("More", () => load(), "more");
  let cursor = null;

  async function load() {
    const answer = await list(collection, { limit: PAGE, cursor });
    cursor = answer.next;
    more.hidden = !cursor;
    rows.append(table(["id", "title", "text", ""], answer.documents.map((one) => [
      one.id, one.title, one.text.slice(0, 120), remover(collection, one.id),
    ])));
  }
  await load();
  return element("section", "", element("h2", "", "Documents"), rows, more);
}

function remover(collection, id) {
  const made = button("Delete", async () => {
    if (made.textContent === "Delete") {
      made.textContent = "Really delete?";
      return;
    }
    try {
      await removeDocument(collection, id);
      made.closest("tr").remove();
    } catch (error) {
      made.textContent = error.message;
    }
  }, "link");
  made.setAttribute("aria-label", `Delete ${id}`);
  return made;
}
