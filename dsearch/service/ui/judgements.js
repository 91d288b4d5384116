// Judgements that somebody drops on the page: a BEIR folder, CSV, TSV or JSONL of query, document, grade, or TREC's
// with a file of the queries' texts.

import { button, element, input, problemElement } from "./dom.js";
import { count } from "./words.js";

// A form that hands {queries, judgements, training, testing} to `use`, with the element in which to show what
// comes of it. `training` and `testing` are null unless a BEIR folder has both.
export function judgementsForm(action, use) {
  const files = input("file", { multiple: "", accept: ".csv,.tsv,.jsonl,.json,.txt,.trec,.qrels" });
  files.setAttribute("aria-label", "Files with judgements");
  const folder = input("file", { webkitdirectory: "" });
  folder.setAttribute("aria-label", "Folder with judgements");
  const said = element("p", "quiet");
  said.setAttribute("role", "status");
  const result = element("div");
  let given = null;
  const start = button(action, async () => {
    if (!given) {
      result.replaceChildren(problemElement(new Error("Choose files with judgements first.")));
      return;
    }
    result.replaceChildren();
    start.disabled = true;
    try {
      await use(given, result);
    } catch (error) {
      if (error.name !== "AbortError") result.replaceChildren(problemElement(error));
    } finally {
      start.disabled = false;
    }
  }, "main");
  const drop = element("div", "drop",
    element("p", "", "Drop a BEIR folder here, a CSV or JSONL file with ",
      element("code", "", "query, document, grade"), ", or TREC judgements with ",
      element("code", "", "queries.tsv"), "."),
    element("div", "row",
      element("label", "field", element("span", "", "Files"), files),
      element("label", "field", element("span", "", "or a folder"), folder)));
  const read = async (chosen) => {
    try {
      given = await judgementsOf([...await chosen]);
      const judged = Object.values(given.judgements).reduce((sum, of) => sum + Object.keys(of).length, 0);
      said.textContent = `${count(Object.keys(given.queries).length, "query", "queries")}, ` +
        `${count(judged, "judgement")}${given.testing ? ", split into training and test" : ""}.`;
    } catch (error) {
      given = null;
      said.textContent = error.message;
    }
  };
  for (const one of [files, folder]) one.addEventListener("change", () => read(one.files));
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    read(dropped(event.dataTransfer));
  });
  return element("section", "", drop, said, start, result);
}

// The files that were dropped, those within folders too. Entries must be asked for before the event is over.
function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return transfer.files;
  return Promise.all(entries.map(filesWithin)).then((found) => found.flat());
}

async function filesWithin(entry) {
  if (entry.isFile) return [await new Promise((done, failed) => entry.file(done, failed))];
  const reader = entry.createReader(), found = [];
  for (;;) { // a reader gives a hundred at a time, at last none
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (some.length === 0) break;
    found.push(...some);
  }
  return (await Promise.all(found.map(filesWithin))).flat();
}

export async function judgementsOf(files) {
  const queries = {}, all = {}, bySplit = { train: {}, other: {} };
  const useful = files.filter(({ name }) => /\.(csv|tsv|jsonl?|txt|trec|qrels)$/i.test(name) && !/^corpus\./i.test(name));
  const texts = await Promise.all(useful.map(async (file) => [file.name, await file.text()]));
  // Texts of queries first: a qrels file names them by id.
  for (const [name, text] of texts) {
    if (/queries.*\.jsonl$/i.test(name)) for (const one of lines(name, text)) queries[one._id ?? one.id] = one.text;
    if (/queries.*\.tsv$/i.test(name)) for (const { query, document } of rows(name, text)) queries[query] = document;
  }
  const byId = Object.keys(queries).length > 0;
  for (const [name, text] of texts) {
    if (/queries.*\.(jsonl|tsv)$/i.test(name)) continue;
    const split = bySplit[/^train\.tsv$/i.test(name) ? "train" : "other"];
    for (const { query, document, grade, byId: trec } of /\.jsonl?$/i.test(name) ? lines(name, text) : rows(name, text)) {
      if (query === undefined || document === undefined) {
        throw new Error(`${name}: a line without query or document; each needs both, and may have a grade.`);
      }
      const value = Number(grade ?? 1);
      if (!Number.isFinite(value)) throw new Error(`${name}: the grade ${grade} is not a number.`);
      if (trec && !byId) throw new Error(`${name}: TREC names queries by id; choose queries.tsv or queries.jsonl with it.`);
      const id = String(query);
      if (!byId) queries[id] = id;
      if (!(id in queries)) continue; // judged, but its text is not given
      for (const of of [all, split]) (of[id] ??= {})[String(document)] = value;
    }
  }
  const judged = Object.fromEntries(Object.entries(queries).filter(([id]) => id in all));
  if (Object.keys(judged).length === 0) throw new Error("No judged query was found in these files.");
  const both = Object.values(bySplit).every((split) => Object.keys(split).length > 0);
  return {
    queries: judged, judgements: all,
    training: both ? bySplit.train : null, testing: both ? bySplit.other : null,
  };
}

// Of the texts those that these judgements are about.
export function queriesOf({ queries }, judgements) {
  return Object.fromEntries(Object.keys(judgements).map((id) => [id, queries[id]]));
}

function lines(name, text) {
  return numbered(text).map(([line, number]) => {
    try {
      return JSON.parse(line);
    } catch {
      throw new Error(`${name}, line ${number}: not JSON.`);
    }
  });
}

// Lines that are not blank, with their numbers as an editor has them.
const numbered = (text) => text.split(/\r?\n/).map((line, at) => [line, at + 1]).filter(([line]) => line.trim());

// Comma or tab separated, with or without a first line of names; the grade may be missing.
function rows(name, text) {
  const all = numbered(text);
  if (all.length === 0) return [];
  const [[header]] = all, trec = all.map(([line]) => line.trim().split(/\s+/));
  if (!/[,\t]/.test(header) && trec[0].length === 4 && /^(0|Q0)$/.test(trec[0][1])) {
    return trec.map(([id, , document, grade]) => ({ query: id, document, grade, byId: true }));
  }
  const split = header.includes("\t") ? (line) => line.split("\t") : commas;
  const first = split(header).map((cell) => cell.trim().toLowerCase());
  const named = first.some((cell) => /^(query|query-id|document|corpus-id|grade|score)$/.test(cell));
  return (named ? all.slice(1) : all).map(([line, number]) => {
    const cells = split(line);
    if (cells.length < 2) {
      throw new Error(`${name}, line ${number}: one column; use query, document and, if you like, grade.`);
    }
    return { query: cells[0], document: cells[1], grade: cells[2] };
  });
}

function commas(line) {
  return [...line.matchAll(/("(?:[^"]|"")*"|[^,]*)(,|$)/g)]
    .map((cell) => cell[1].replace(/^"|"$/g, "").replaceAll('""', '"'))
    .slice(0, -1);
}
