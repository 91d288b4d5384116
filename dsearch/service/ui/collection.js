// What a collection is and holds: figures, a map of its embeddings, its documents; put in and take out.

import { attend, describe, facets, list, refresh, removeDocument, statistics } from "./api.js";
import { scatter } from "./charts.js";
import { button, element, field, input, problemElement, select, table } from "./dom.js";
import { collectionControls } from "./manage.js";
import { outcome } from "./jobs.js";
import { worthwhile } from "./filters.js";
import { projected } from "./projection.js";
import { moreFiles } from "./upload.js";
import { count, percent } from "./words.js";

const PAGE = 20;
const FACETS = 8;
const FACET_VALUES = 10;
const SHORT = 4; // values that are listed whatever they are
const ON_THE_MAP = 300;

export async function show(view, { collection, signal }) {
  const [found, costs] = await Promise.all([describe(collection), statistics(collection)]);
  const map = element("section", "", element("h2", "", "Map"));
  view.append(element("h1", "", collection), figures(found, costs), generations(costs, collection, signal), map,
    await fields(collection), upload(collection), await documents(collection), await collectionControls(collection));
  drawMap(map, collection, signal);
}

function figures(found, costs) {
  const { delta, keys } = costs;
  const rows = [
    ["documents", found.documents.toLocaleString("en")],
    ["waiting to be encoded", found.pending.toLocaleString("en")],
    ["changed since the index was built", `${delta.documents.toLocaleString("en")} (${percent(delta.share)})`],
    ["keys", keys ? describeKeys(keys) : "no index yet"],
    ["on disk", costs.bytes_per_document === null ? bytes(costs.bytes)
      : `${bytes(costs.bytes)}, ${bytes(costs.bytes_per_document)} a document`],
    ["model", costs.models ? `${found.model}, of ${count(costs.models, "trained version")}` : `${found.model}, untrained`],
    ["operations so far", found.sequence.toLocaleString("en")],
    ["language", found.language ?? ""],
    ["encoder", `${found.encoder.name ?? "given embeddings"}, ${found.encoder.dimension} numbers`],
  ];
  if (found.passages) {
    const { tokens, overlap } = found.passages;
    rows.push(["passages", `${count(tokens, "token")} at most, of which they share ${overlap}`]);
  }
  return table(["", ""], rows, "What it is");
}

function describeKeys(keys) {
  const recall = keys.recall_at_10 === null ? "" : `, recall@10 ${keys.recall_at_10.toFixed(3)} as measured`;
  return `${keys.kind}${keys.asked === keys.kind ? "" : ` (asked for: ${keys.asked})`}${recall}`;
}

function bytes(number) {
  const [unit, size] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]].find(([, least]) => number >= least) ?? ["B", 1];
  return `${(number / size).toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
}

// The editions of the index, and a new one on request.
function generations(costs, collection, signal) {
  const rows = costs.generations.map((one) => [one.number, one.live ? "answers now" : "kept",
    one.documents.toLocaleString("en"), one.sequence, bytes(one.bytes)]);
  const result = element("div");
  const build = button("Rebuild the index", async () => {
    build.disabled = true;
    try {
      const task = await refresh(collection);
      await outcome(result, task.id, signal, ({ result: made }) => element("p", "quiet",
        `Generation ${made.generation} answers now.`));
    } catch (error) {
      if (error.name !== "AbortError") result.replaceChildren(problemElement(error));
    } finally {
      build.disabled = false;
    }
  }, "link");
  return element("section", "", element("h2", "", "Generations"),
    table(["number", "", "documents", "up to operation", "size"], rows), build, result);
}

// How many documents have which values, of the fields that the first documents have.
async function fields(collection) {
  const { documents: sample } = await list(collection, { limit: PAGE });
  const names = fieldsOf(sample, ["string", "number", "boolean"]).slice(0, FACETS);
  if (names.length === 0) return "";
  const { facets: found } = await facets(collection, { fields: names, limit: FACET_VALUES });
  const rows = Object.entries(found).map(([name, values]) => [name,
    worthwhile(values, Infinity) || values.length <= SHORT
      ? values.map((one) => `${one.value === "" ? "(empty)" : one.value ?? "none"} (${one.documents.toLocaleString("en")})`).join(", ")
      : `mostly different, such as ${values.slice(0, 2).map((one) => one.value).join(", ")}`]);
  return element("section", "", element("h2", "", "Fields"),
    table(["field", `its ${FACET_VALUES} most frequent values, with their documents`], rows));
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
    "components). Stronger dots hold more of the attention."), form, holder);

  let around = "", turn = 0;

  async function draw() {
    const mine = ++turn; // of two the later is shown
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
      if (mine !== turn) return;
      holder.replaceChildren(scatter(ids.map((id, at) => ({
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
      if (mine === turn && error.name !== "AbortError") holder.replaceChildren(problemElement(error));
    }
  }

  const { documents: sample } = await list(collection, { limit: 20 });
  if (sample.length === 0) {
    section.remove();
    return;
  }
  around = (sample[0].title || sample[0].text).slice(0, 80);
  for (const name of fieldsOf(sample, ["string", "boolean"])) {
    const option = element("option", "", name);
    option.value = name;
    colour.append(option);
  }
  await draw();
}

// Names of metadata whose values are of these types.
function fieldsOf(documents, types) {
  return [...new Set(documents.flatMap((one) => Object.entries(one.metadata)
    .filter(([, value]) => types.includes(typeof value)).map(([name]) => name)))].sort();
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

function upload(collection) {
  return element("section", "", element("h2", "", "Add documents"), moreFiles(collection));
}

async function documents(collection) {
  const rows = element("div");
  const more = button("More", () => load(), "more");
  let cursor = null;

  async function load() {
    const answer = await list(collection, { limit: PAGE, cursor });
    cursor = answer.next;
    more.hidden = !cursor;
    const page = table(["id, title", "text", ""], answer.documents.map((one) => [
      named(one), one.text.slice(0, 120), remover(collection, one.id),
    ]));
    page.classList.add("documents");
    if (answer.documents.length > 0) rows.append(page);
    else if (!rows.hasChildNodes()) rows.append(element("p", "quiet", "No documents yet: drop files above."));
  }
  await load();
  return element("section", "", element("h2", "", "Documents"), rows, more);
}

function named({ id, title }) {
  const made = element("span", "", id);
  if (title && title !== id) made.append(element("br"), element("span", "quiet", title));
  return made;
}

function remover(collection, id) {
  const made = button("Delete", async () => {
    if (made.textContent === "Delete") {
      made.textContent = "Really delete?";
      return;
    }
    try {
      const { note } = await removeDocument(collection, id);
      const row = made.closest("tr");
      if (note) row.closest("table").before(element("p", "quiet", note));
      row.remove();
    } catch (error) {
      made.textContent = error.message;
    }
  }, "link");
  made.setAttribute("aria-label", `Delete ${id}`);
  return made;
}
