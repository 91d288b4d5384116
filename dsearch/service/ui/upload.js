// Files that somebody drops: text, Markdown, HTML, code, CSV and JSON lines become documents in the browser.

import { createCollection, write } from "./api.js";
import { button, element, input, worded } from "./dom.js";
import { frontMatter } from "./front.js";
import { ofLines, ofTable } from "./records.js";
import { count } from "./words.js";

const PLAIN = /\.(txt|md|markdown|rst|org|html?|csv|tsv|jsonl|json|ya?ml|toml|ini|py|js|ts|c|h|cpp|java|go|rs|rb|sh|sql|css)$/i;
const LARGEST = 1_000_000; // bytes of a document's text
const AT_ONCE = 50; // documents of a request; few enough that progress is seen
const LETTERS_AT_ONCE = 40_000;
const NAMED = 3; // of the files that are left out
const ADDED = "dsearch-added"; // what was said of files that made a collection, for search.js after the reload
const NAME = /^[a-z0-9][a-z0-9_-]{0,63}$/;

// A collection that is made of what is dropped; the page then opens it.
export function newCollection() {
  const name = input("text", { maxlength: 64, value: "notes", "aria-label": "Name of the collection" });
  return dropZone(async (files, said) => {
    const called = name.value.trim();
    if (!NAME.test(called)) throw new Error("A name has small letters, digits, - and _, and begins with a letter or digit.");
    await createCollection(called);
    sessionStorage.setItem(ADDED, await add(called, files, said));
    history.replaceState(null, "", `#c=${called}`); // a changed hash would draw a collection not yet listed
    location.reload();
  }, element("label", "field", element("span", "", "Name"), name));
}

// Into a collection that is there.
export function moreFiles(collection, done) {
  return dropZone(async (files, said) => {
    await add(collection, files, said);
    await done?.();
  });
}

function dropZone(use, ...controls) {
  const files = input("file", { multiple: "" });
  files.setAttribute("aria-label", "Files to add");
  const folder = input("file", { webkitdirectory: "" });
  folder.setAttribute("aria-label", "Folder to add");
  const said = element("p", "quiet");
  said.setAttribute("role", "status");
  let chosen = [];
  const run = async () => {
    start.disabled = true;
    try {
      if (chosen.length === 0) throw new Error("Choose or drop files first.");
      await use(chosen, said);
    } catch (error) {
      said.replaceChildren(...worded(error.message));
    } finally {
      start.disabled = false;
    }
  };
  const start = button("Add", run, "main");
  const take = (given) => {
    chosen = [...given];
    said.textContent = `${count(chosen.length, "file")} chosen.`;
  };
  for (const one of [files, folder]) one.addEventListener("change", () => take(one.files));
  const zone = element("div", "drop", element("p", "", "Drop files here: text, Markdown, HTML, code, CSV or JSON lines."),
    element("div", "row", ...controls,
      element("label", "field", element("span", "", "Files"), files),
      element("label", "field", element("span", "", "or a folder"), folder), start));
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files);
    run();
  });
  return element("div", "", zone, said);
}

async function add(collection, files, said) {
  said.textContent = `Reading ${count(files.length, "file")} …`;
  const { documents, skipped } = await documentsOf(files);
  if (documents.length === 0) {
    throw new Error(skipped.length ? `Nothing to add. ${leftOut(skipped, collection)}` : "The files are empty.");
  }
  const sums = { inserted: 0, updated: 0, unchanged: 0 };
  const letters = documents.reduce((sum, one) => sum + one.text.length, 0), started = performance.now();
  let done = 0, sent = 0;
  for (const part of parts(documents)) {
    const left = sent ? `, about ${Math.ceil((performance.now() - started) / 1000 / sent * (letters - sent))} s left` : "";
    said.textContent = `Adding ${count(documents.length, "document")}: ${done} done${left} …`;
    const written = await write(collection, part);
    for (const name of Object.keys(sums)) sums[name] += written[name];
    done += part.length;
    sent += part.reduce((sum, one) => sum + one.text.length, 0);
  }
  const text = [`${sums.inserted} new, ${sums.updated} changed, ${sums.unchanged} unchanged.`,
    skipped.length ? leftOut(skipped, collection) : ""].filter(Boolean).join(" ");
  said.replaceChildren(...worded(text));
  return text;
}

function leftOut(skipped, collection) {
  const more = skipped.length > NAMED ? ` and ${skipped.length - NAMED} more` : "";
  return `Left out: ${skipped.slice(0, NAMED).join(", ")}${more}. In a terminal, \`dsearch index FOLDER -c ${collection}\` ` +
    "reads PDF, Office files, mail and files above 1 MB too.";
}

function* parts(documents) {
  let part = [], letters = 0;
  for (const one of documents) {
    if (part.length === AT_ONCE || (part.length && letters + one.text.length > LETTERS_AT_ONCE)) {
      yield part;
      [part, letters] = [[], 0];
    }
    part.push(one);
    letters += one.text.length;
  }
  yield part;
}

export async function documentsOf(files) {
  const documents = [], skipped = [];
  for (const file of files) {
    const path = file.webkitRelativePath || file.name;
    if (!PLAIN.test(file.name)) skipped.push(path);
    else if (file.size > LARGEST && !/\.(jsonl|csv|tsv)$/i.test(file.name)) skipped.push(`${path} (above 1 MB)`);
    else documents.push(...ofFile(file, path, await textOf(file)));
  }
  return { documents: documents.filter((one) => (one.text + one.title).trim()), skipped };
}

// UTF-8, else as Windows and Latin-1 write it.
async function textOf(file) {
  const bytes = await file.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

function ofFile(file, path, text) {
  const type = file.name.split(".").pop().toLowerCase();
  const metadata = { path, name: file.name, type, modified: new Date(file.lastModified).toISOString() };
  if (type === "jsonl") return ofLines(path, text);
  if (type === "csv" || type === "tsv") return ofTable(path, text);
  if (/^html?$/.test(type)) {
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const one of page.querySelectorAll("script, style, nav")) one.remove();
    return [{ id: path, title: page.title || file.name, text: page.body.textContent.replace(/\s+\n/g, "\n").trim(), metadata }];
  }
  if (!/^(?:md|markdown)$/.test(type)) return [{ id: path, title: file.name, text, metadata }];
  const { fields: { title, ...fields }, text: body } = frontMatter(text);
  const heading = typeof title === "string" && title.trim() ? title : body.match(/^#\s+(.+)$/m)?.[1];
  return [{ id: path, title: heading || file.name, text: body, metadata: { ...metadata, ...fields } }];
}
