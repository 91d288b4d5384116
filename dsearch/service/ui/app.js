// The page: ask a collection, see what the query attends to.
//
//   words.js  numbers as words, no DOM          hits.js  one hit as elements (text only ever as textContent)
//   api.js    requests, problems as errors      app.js   the state of the page

import { describe, search, collections } from "./api.js";
import { hitElement } from "./hits.js";
import { attentionInWords, count } from "./words.js";

const WAIT_MS = 140; // after the last key, before a search
const LIMIT = 10;

const at = (id) => document.getElementById(id);
const form = at("form"), query = at("query"), chosen = at("collection"), hits = at("hits");
const status = at("status"), problem = at("problem"), hint = at("hint"), stamp = at("stamp");

let waiting = 0; // the timer of the next search
let running = null; // the AbortController of the present one

// ---- state and address: #c=papers&mode=dense&q=…

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  query.value = given.get("q") ?? "";
  const mode = [...form.elements.mode].find((one) => one.value === given.get("mode"));
  if (mode) mode.checked = true;
  const name = given.get("c");
  if (name !== null && [...chosen.options].some((one) => one.value === name)) chosen.value = name;
}

function writeAddress() {
  const state = new URLSearchParams();
  if (chosen.value) state.set("c", chosen.value);
  if (form.elements.mode.value !== "hybrid") state.set("mode", form.elements.mode.value);
  if (query.value.trim()) state.set("q", query.value);
  history.replaceState(null, "", `#${state}`);
}

// ---- searching

function searchSoon() {
  clearTimeout(waiting);
  waiting = setTimeout(searchNow, WAIT_MS);
}

async function searchNow() {
  clearTimeout(waiting);
  running?.abort();
  running = null;
  writeAddress();
  const words = query.value.trim();
  if (!words || !chosen.value) {
    document.body.classList.remove("busy");
    hits.replaceChildren();
    problem.hidden = true;
    status.textContent = "";
    await showCollection();
    return;
  }
  const mine = (running = new AbortController());
  document.body.classList.add("busy");
  try {
    const request = { query: words, mode: form.elements.mode.value, limit: LIMIT, explain: true };
    const answer = await search(chosen.value, request, mine.signal);
    if (running === mine) show(answer, words);
  } catch (error) {
    if (running === mine && error.name !== "AbortError") showProblem(error);
  } finally {
    if (running === mine) document.body.classList.remove("busy");
  }
}

function show(answer, words) {
  problem.hidden = true;
  hint.hidden = true;
  hits.replaceChildren(...answer.hits.map((hit) => hitElement(hit, words)));
  status.textContent = attentionInWords(answer);
  showStamp(answer);
}

function showProblem(error) {
  problem.textContent = error.message;
  problem.hidden = false;
  hint.hidden = true;
  hits.replaceChildren();
  status.textContent = "";
}

function showStamp(answer) {
  const parts = [`generation ${answer.generation}`, `model ${answer.model}`, `sequence ${answer.sequence}`];
  if (answer.took_ms !== undefined) parts.push(`${answer.took_ms.toFixed(1)} ms`);
  stamp.textContent = parts.join(" · ");
}

// ---- what there is to search

async function showCollection() {
  if (!chosen.value) return;
  try {
    const found = await describe(chosen.value);
    if (query.value.trim()) return; // somebody typed meanwhile
    hint.replaceChildren(heading(`${count(found.documents, "document")} to ask`), paragraph(
      "Each hit shows its share of the attention: how much of the answer it would be. " +
      "Meaning compares embeddings, Words compares the words themselves, Hybrid adds the two."));
    hint.hidden = false;
    showStamp(found);
  } catch (error) {
    showProblem(error);
  }
}

function showEmpty() {
  const command = document.createElement("code");
  command.textContent = "dsearch index FOLDER -c notes";
  const line = paragraph("Index a folder, then reload this page: ");
  line.append(command);
  hint.replaceChildren(heading("No collection yet"), line);
  hint.hidden = false;
  query.disabled = true;
  chosen.disabled = true;
}

function heading(text) {
  const element = document.createElement("h2");
  element.textContent = text;
  return element;
}

function paragraph(text) {
  const element = document.createElement("p");
  element.textContent = text;
  return element;
}

function option(collection) {
  const element = document.createElement("option");
  element.value = collection.name;
  element.textContent = collection.problem
    ? `${collection.name} (damaged)`
    : `${collection.name} (${collection.documents.toLocaleString("en")})`;
  return element;
}

// ---- keys: / to ask, ↓ ↑ through the hits, Escape back

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === query;
  if (event.key === "/" && !typing && !event.target.matches("select")) {
    event.preventDefault();
    query.select();
  } else if (event.key === "Escape" && !typing) {
    query.focus();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const all = [...hits.children];
    const present = all.indexOf(event.target.closest?.(".hit"));
    if (!typing && present < 0) return;
    const next = present + (event.key === "ArrowDown" ? 1 : -1);
    if (next >= all.length || (typing && event.key === "ArrowUp")) return;
    event.preventDefault();
    (next < 0 ? query : all[next]).focus();
  }
}

async function start() {
  document.addEventListener("keydown", onKey);
  query.addEventListener("input", searchSoon);
  form.addEventListener("change", (event) => event.target !== query && searchNow());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    searchNow();
  });
  addEventListener("hashchange", () => {
    readAddress();
    searchNow();
  });
  try {
    const found = await collections();
    chosen.replaceChildren(...found.map(option));
    if (found.length === 0) {
      showEmpty();
      return;
    }
    if (!query.value) readAddress(); // what was typed before this answer stays
    await searchNow();
  } catch (error) {
    showProblem(error);
  }
}

start();
