// Judgements that somebody drops on the page: a BEIR folder, CSV, TSV or JSONL of query, document, grade.

import { button, element, input, problemElement } from "./dom.js";

// A form that hands {queries, judgements} to `use`, with the element in which to show what comes of it.
export function judgementsForm(action, use, extra = []) {
  const files = input("file", { multiple: "", accept: ".csv,.tsv,.jsonl,.json,.txt" });
  files.setAttribute("aria-label", "Files with judgements");
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
    element("p", "", "Drop a BEIR folder's queries.jsonl and qrels file here, or a CSV or JSONL file with ",
      element("code", "", "query, document, grade"), ":"), files);
  const read = async (chosen) => {
    try {
      given = await judgementsOf([...chosen]);
      said.textContent = `${Object.keys(given.queries).length} queries, ` +
        `${Object.values(given.judgements).reduce((sum, of) => sum + Object.keys(of).length, 0)} judgements.`;
    } catch (error) {
      given = null;
      said.textContent = error.message;
    }
  };
  files.addEventListener("change", () => read(files.files));
  drop.addEventListener("dragover", (event) => event.preventDefault());
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    read(event.dataTransfer.files);
  });
  return element("section", "", drop, said, ...extra, start, result);
}

export async function judgementsOf(files) {
  const queries = {}, judgements = {};
  const texts = await Promise.all(files.map(async (file) => [file.name, await file.text()]));
  // Texts of queries first: a qrels file names them by id.
  for (const [name, text] of texts) {
    if (/queries.*\.jsonl$/.test(name)) for (const one of lines(name, text)) queries[one._id ?? one.id] = one.text;
  }
  const byId = Object.keys(queries).length > 0;
  for (const [name, text] of texts) {
    if (/queries.*\.jsonl$/.test(name)) continue;
    for (const { query, document, grade } of /\.jsonl?$/.test(name) ? lines(name, text) : rows(name, text)) {
      const id = String(query);
      if (!byId) queries[id] = id;
      if (!(id in queries)) continue; // judged, but its text is not given
      (judgements[id] ??= {})[String(document)] = Number(grade ?? 1);
    }
  }
  const judged = Object.fromEntries(Object.entries(queries).filter(([id]) => id in judgements));
  if (Object.keys(judged).length === 0) throw new Error("No judged query was found in these files.");
  return { queries: judged, judgements };
}

function lines(name, text) {
  return text.split("\n").filter((line) => line.trim()).map((line, number) => {
    try {
      return JSON.parse(line);
    } catch {
      throw new Error(`${name}, line ${number + 1}: not JSON.`);
    }
  });
}

// Comma or tab separated, with or without a first line of names; the grade may be missing.
function rows(name, text) {
  const all = text.split(/\r?\n/).filter((line) => line.trim());
  const split = all[0].includes("\t") ? (line) => line.split("\t") : commas;
  const first = split(all[0]).map((cell) => cell.trim().toLowerCase());
  const named = first.some((cell) => /^(query|query-id|document|corpus-id|grade|score)$/.test(cell));
  return (named ? all.slice(1) : all).map((line, number) => {
    const cells = split(line);
    if (cells.length < 2) throw new Error(`${name}, line ${number + 1}: fewer than two columns.`);
    return { query: cells[0], document: cells[1], grade: cells[2] };
  });
}

function commas(line) {
  return [...line.matchAll(/("(?:[^"]|"")*"|[^,]*)(,|$)/g)]
    .map((cell) => cell[1].replace(/^"|"$/g, "").replaceAll('""', '"'))
    .slice(0, -1);
}
