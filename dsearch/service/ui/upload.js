// Files that somebody drops, of any kind: the server reads them in a task and says what became of each.

import { createCollection, follow, pause, sendFiles, task } from "./api.js";
import { button, element, input, worded } from "./dom.js";
import { count } from "./words.js";

const LARGEST = 64 * 2 ** 20; // bytes of a file that the server takes
const FILES_AT_ONCE = 100; // of a request; few enough that progress is seen
const BYTES_AT_ONCE = 64 * 2 ** 20;
const AGAIN_MS = 500; // after a stream that ended before its task
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
  const zone = element("div", "drop", element("p", "", "Drop files here: text, Markdown, HTML, PDF, Word, mail, code, CSV, JSON lines and more."),
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
  const large = files.filter((file) => file.size > LARGEST).map((file) => ({ name: pathOf(file), reason: "above 64 MB" }));
  const sums = { inserted: 0, updated: 0, unchanged: 0, deleted: 0, files: large };
  const wanted = files.filter((file) => file.size <= LARGEST);
  let done = 0;
  for (const part of parts(wanted)) {
    said.textContent = `Sending ${count(wanted.length, "file")}: ${done} done …`;
    const ended = await followed(await sendFiles(collection, part.map((file) => [pathOf(file), file])), (read) => {
      said.textContent = `Reading ${count(wanted.length, "file")}: ${done + read.done} done …`;
    });
    if (!ended.result) throw new Error(ended.problem?.detail ?? `The files were not read: the task is ${ended.state}.`);
    for (const [name, value] of Object.entries(sums)) {
      sums[name] = name === "files" ? [...value, ...ended.result.files] : value + ended.result[name];
    }
    done += part.length;
  }
  const text = filesInWords(sums);
  if (sums.files.every((file) => file.reason)) throw new Error(text);
  said.replaceChildren(...worded(text));
  return text;
}

// The task of a request when it has ended. A server that is busy or starts again goes on with it.
async function followed({ id }, hear) {
  for (;;) {
    await follow(id, (kind, data) => kind === "progress" && hear(data)).catch(() => {});
    const seen = await task(id);
    if (seen.ended) return seen;
    await pause(AGAIN_MS);
  }
}

// What became of files, by the result of their task.
export function filesInWords({ inserted, updated, unchanged, deleted, files }) {
  const out = files.filter((file) => file.reason);
  const named = out.slice(0, NAMED).map(({ name, reason }) => `${name} (${reason.split("; ")[0]})`).join("; ");
  const left = out.length ? `Left out: ${named}${out.length > NAMED ? `; and ${out.length - NAMED} more` : ""}.` : "";
  if (out.length === files.length) return `Nothing to add. ${left}`;
  const counts = `${inserted} new, ${updated} changed, ${unchanged} unchanged${deleted ? `, ${deleted} deleted` : ""}.`;
  return [counts, left].filter(Boolean).join(" ");
}

const pathOf = (file) => file.webkitRelativePath || file.name;

function* parts(files) {
  let part = [], bytes = 0;
  for (const file of files) {
    if (part.length === FILES_AT_ONCE || (part.length && bytes + file.size > BYTES_AT_ONCE)) {
      yield part;
      [part, bytes] = [[], 0];
    }
    part.push(file);
    bytes += file.size;
  }
  if (part.length) yield part;
}
