// Search as attention: ask, see what fits.

import { remember, state } from "./address.js";
import { describe, models, search, similar } from "./api.js";
import { heatmap } from "./heatmap.js";
import { element, worded } from "./dom.js";
import { hitElement } from "./hits.js";
import { acts } from "./judging.js";
import { attentionInWords, confidenceInWords, count, evidenceInWords, judgesHits, waitingInWords } from "./words.js";

const WAIT_MS = 140; // after the last key, before a search
const LIMIT = 10;
const ADDED = "dsearch-added"; // as upload.js leaves it
const WRITTEN_INTO = "select, textarea, input[type=search], input[type=password], input[type=text]";

const at = (id) => document.getElementById(id);
const form = at("form"), query = at("query"), chosen = at("collection"), hits = at("hits"), model = at("model");
const status = at("status"), problem = at("problem"), hint = at("hint"), stamp = at("stamp"), heat = at("heat");
const less = at("less"), further = at("further");

let waiting = 0; // the timer of the next search
let running = null; // the AbortController of the present one
let ahead = query.value !== ""; // words that the address lacks
let next = null; // asks for the next page
let shown = []; // the hits so far
let added = ""; // what became of added files

export function startSearch() {
  document.addEventListener("keydown", onKey);
  query.addEventListener("input", searchSoon);
  form.addEventListener("change", (event) => {
    if (event.target !== query) searchNow();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    searchNow();
  });
  further.addEventListener("click", () => next?.());
  at("facets").addEventListener("change", () => searchNow());
  added = sessionStorage.getItem(ADDED) ?? "";
  sessionStorage.removeItem(ADDED);
}

export function showSearch() {
  readAddress();
  return searchAnew();
}

export function changedCollection() {
  remember({ f: null, m: null });
  at("filters").hidden = true;
  return searchAnew();
}

// Nobody judges the hits of before meanwhile, or sees those under way.
async function searchAnew() {
  running?.abort();
  running = null;
  document.body.classList.add("busy");
  await Promise.all([offerModels(), offerLook()]);
  await searchNow();
}

export async function noCollection() {
  query.disabled = model.disabled = true;
  model.append(element("option", "", "none yet"));
  const { newCollection } = await import("./upload.js");
  const command = element("code", "", "dsearch index FOLDER -c notes");
  hint.replaceChildren(element("h2", "", "No collection yet"), newCollection(),
    element("p", "", "Or index a whole folder where it lies, then reload this page: ", command));
  hint.hidden = false;
}

// ---- state and address

function readAddress() {
  const given = state();
  if (!ahead) query.value = given.get("q") ?? "";
  const mode = [...form.elements.mode].find((one) => one.value === (given.get("mode") ?? "hybrid"));
  if (mode) mode.checked = true;
  form.elements.look.checked = given.has("look");
}

function writeAddress() {
  if (!chosen.value) return; // not read yet
  ahead = false;
  const mode = form.elements.mode.value;
  remember({
    c: chosen.value, mode: mode === "hybrid" ? null : mode, m: model.length > 1 ? model.value || null : state().get("m"),
    q: query.value.trim() ? query.value : null, look: form.elements.look.checked ? "1" : null,
  });
}

async function offerModels() {
  const collection = chosen.value;
  model.replaceChildren(choice("", "live"));
  try {
    const { live, models: all } = await models(collection);
    if (chosen.value !== collection) return;
    model.replaceChildren(choice("", `${live} (live)`), ...all
      .map((one) => one.version)
      .filter((version) => version !== live)
      .map((version) => choice(version, version)));
    model.value = state().get("m") ?? "";
    if (model.selectedIndex < 0) model.value = "";
  } catch {
    // A damaged collection says so where it is searched.
  }
}

// A second look, where the documents have tokens.
async function offerLook() {
  const collection = chosen.value;
  at("look").hidden = true;
  const { second_stage } = await describe(collection).catch(() => ({}));
  if (chosen.value === collection) at("look").hidden = !second_stage;
}

// By keywords alone there is none.
function lookOptions() {
  const { look, mode } = form.elements;
  if (at("look").hidden || !look.checked || mode.value === "keyword") return {};
  return { stages: 2, highlight_by: "meaning" };
}

function choice(value, text) {
  const made = element("option", "", text);
  made.value = value;
  return made;
}

// ---- searching

function searchSoon() {
  ahead = true;
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
    empty();
    problem.hidden = true;
    status.textContent = "";
    await showCollection();
    return;
  }
  const request = { query: words, collapse: true, ...options(), ...lookOptions() };
  await answered((page, signal) => search(chosen.value, { ...request, ...page }, signal), words);
}

function options() {
  const filter = filterOf();
  return {
    mode: form.elements.mode.value,
    limit: LIMIT,
    explain: true,
    highlight: true,
    ...(model.value ? { model: model.value } : {}),
    ...(filter ? { filter } : {}),
  };
}

// The filter of the address: field → ticked values.
function filterOf() {
  let ticked = {};
  try {
    ticked = JSON.parse(state().get("f") ?? "{}");
  } catch {
    return null;
  }
  const conditions = Object.entries(ticked ?? {})
    .filter(([, values]) => Array.isArray(values) && values.length > 0)
    .map(([name, values]) => ({ [name]: { in: values } }));
  if (conditions.length === 0) return null;
  return conditions.length === 1 ? conditions[0] : { and: conditions };
}

// `about` says what was asked when it was not words; `page` is {cursor} from the second page on.
async function answered(ask, words, about = "", page = {}) {
  const mine = (running = new AbortController());
  if (about) status.textContent = about;
  document.body.classList.add("busy");
  try {
    const answer = await ask(page, mine.signal);
    if (!page.cursor) await offerFilters(answer.hits); // or hits would move
    if (running !== mine) return;
    show(answer, words, about, Boolean(page.cursor));
    further.hidden = !answer.next_cursor;
    next = () => answered(ask, words, about, { cursor: answer.next_cursor });
  } catch (error) {
    if (running === mine && error.name !== "AbortError") showProblem(error);
  } finally {
    if (running === mine) document.body.classList.remove("busy");
  }
}

function show(answer, words, about, continued) {
  problem.hidden = true;
  hint.hidden = true;
  if (!continued) empty();
  const floor = judgesHits(answer.confidence) ? answer.confidence.floor : -Infinity, nothing = answer.confidence?.verdict === "nothing fits";
  for (const hit of answer.hits) {
    const item = hitElement(hit, words);
    addActs(item, hit, answer);
    const unlikely = nothing || (hit.score < floor && hit.rank > 1);
    (unlikely ? less.querySelector("ol") : hits).append(item);
  }
  shown.push(...answer.hits);
  const folded = less.querySelector("ol").children.length;
  less.hidden = folded === 0;
  less.querySelector("summary").textContent = `Less likely (${folded})`;
  if (!continued) {
    const verdict = confidenceInWords(answer);
    status.replaceChildren(...[about && `${about}. `, verdict && element("strong", "", verdict),
      verdict && ` ${evidenceInWords(answer)} `, attentionInWords(answer), " ", ...worded(waitingInWords(answer))]
      .filter(Boolean));
    showHeat(answer);
  }
  showStamp(answer);
}

function addActs(item, hit, answer) {
  item.append(element("p", "acts", ...acts(chosen.value, hit, answer, () => {
    const request = { like: [hit.id], ...options() };
    answered((page, signal) => similar(chosen.value, { ...request, ...page }, signal), "",
      `Like ${hit.title || hit.id}`);
  })));
}

async function offerFilters(found) {
  const { offer } = await import("./filters.js");
  await offer(chosen.value, found);
}

function empty() {
  shown = [];
  hits.replaceChildren();
  less.querySelector("ol").replaceChildren();
  less.hidden = true;
  less.open = false;
  further.hidden = true;
  heat.replaceChildren();
}

// Where several heads look, what each looks at.
function showHeat({ hits: found }) {
  const heads = found[0]?.explain?.head_weights.length ?? 0;
  heat.replaceChildren();
  if (heads < 2) return;
  const rows = Array.from({ length: heads }, (_, head) => `head ${head + 1}`);
  const columns = found.map((hit) => String(hit.rank));
  const weights = rows.map((_, head) => found.map((hit) => hit.explain.head_weights[head]));
  heat.append(heatmap(rows, columns, weights, "What each head attends to, by rank"));
}

function showProblem(error) {
  problem.replaceChildren(...worded(error.message));
  problem.hidden = false;
  hint.hidden = true;
  empty();
  status.textContent = "";
}

function showStamp(answer) {
  const parts = [`generation ${answer.generation}`, `model ${answer.model}`, `sequence ${answer.sequence}`];
  if (answer.took_ms !== undefined) parts.push(`${answer.took_ms.toFixed(1)} ms`);
  stamp.textContent = parts.join(" · ");
}

async function filler() {
  const { moreFiles } = await import("./upload.js");
  return moreFiles(chosen.value, () => location.reload());
}

async function showCollection() {
  const collection = chosen.value;
  if (!collection) return;
  try {
    const found = await describe(collection);
    if (query.value.trim() || chosen.value !== collection) return; // somebody typed, or chose another
    hint.replaceChildren(
      element("h2", "", found.documents ? `${count(found.documents - found.pending, "document")} to ask` : "No documents yet"),
      found.documents ? "" : await filler(),
      found.pending ? element("p", "", ...worded(waitingInWords({ waiting: {
        documents: found.pending, hint: { name: "index", arguments: ["-c", chosen.value] } } }))) : "",
      added && element("p", "", ...worded(added)),
      element("p", "",
        "Each hit shows its share of the attention: how it divides among the hits. With judged queries a line above " +
        "them says how likely the first is right. Meaning compares embeddings, Words compares the words themselves, Hybrid adds the two."));
    hint.hidden = false;
    showStamp(found);
  } catch (error) {
    showProblem(error);
  }
}

// ---- keys: / to ask, ↓ ↑ through the hits, Escape back

function onKey(pressed) {
  if (at("search").hidden || pressed.ctrlKey || pressed.metaKey || pressed.altKey) return;
  const typing = pressed.target === query;
  if (pressed.key === "/" && !typing && !pressed.target.matches(WRITTEN_INTO)) {
    pressed.preventDefault();
    query.select();
  } else if (pressed.key === "Escape" && !typing) {
    query.focus();
  } else if (pressed.key === "ArrowDown" || pressed.key === "ArrowUp") {
    const all = [...at("search").querySelectorAll(".hit")].filter((one) => one.offsetParent);
    const present = all.indexOf(pressed.target.closest?.(".hit"));
    if (!typing && present < 0) return;
    const following = present + (pressed.key === "ArrowDown" ? 1 : -1);
    if (following >= all.length || (typing && pressed.key === "ArrowUp")) return;
    pressed.preventDefault();
    (following < 0 ? query : all[following]).focus();
  }
}
