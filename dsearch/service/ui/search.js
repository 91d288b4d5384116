// Search as attention: ask, see what the query attends to, say what fitted.

import { remember, state, versions } from "./address.js";
import { describe, facets, feedback, models, search, similar } from "./api.js";
import { heatmap } from "./charts.js";
import { button, element, input } from "./dom.js";
import { hitElement } from "./hits.js";
import { attentionInWords, count } from "./words.js";

const WAIT_MS = 140; // after the last key, before a search
const LIMIT = 10;
const CONSENT = "dsearch-consent";
const CLIENT = "dsearch-client";
const WRITTEN_INTO = "select, textarea, input[type=search], input[type=password]";

const at = (id) => document.getElementById(id);
const form = at("form"), query = at("query"), chosen = at("collection"), hits = at("hits"), model = at("model");
const status = at("status"), problem = at("problem"), hint = at("hint"), stamp = at("stamp"), heat = at("heat");
const consent = at("consent"), filters = at("filters"), listed = at("facets");

let waiting = 0; // the timer of the next search
let running = null; // the AbortController of the present one
let ahead = false; // whether something was typed that the address does not have yet
let wanted = {}; // field → values that are ticked
let offered = ""; // the collection and fields that facets are shown of

export function startSearch() {
  document.addEventListener("keydown", onKey);
  query.addEventListener("input", searchSoon);
  form.addEventListener("change", (event) => {
    if (event.target === query || event.target === consent) return;
    searchNow();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    searchNow();
  });
  consent.checked = localStorage.getItem(CONSENT) === "yes";
  consent.addEventListener("change", () => {
    localStorage.setItem(CONSENT, consent.checked ? "yes" : "no");
    if (query.value.trim()) searchNow();
  });
}

export async function showSearch() {
  readAddress();
  await offerModels();
  await searchNow();
}

export async function changedCollection() {
  wanted = {};
  offered = "";
  filters.classList.add("empty");
  await offerModels();
  await searchNow();
}

export function noCollection() {
  const command = element("code", "", "dsearch index FOLDER -c notes");
  hint.replaceChildren(
    element("h2", "", "No collection yet"),
    element("p", "", "Index a folder, then reload this page: ", command));
  hint.hidden = false;
  query.disabled = true;
}

// ---- state and address

function readAddress() {
  const given = state();
  if (!ahead) query.value = given.get("q") ?? "";
  const mode = [...form.elements.mode].find((one) => one.value === given.get("mode"));
  if (mode) mode.checked = true;
}

function writeAddress() {
  ahead = false;
  const mode = form.elements.mode.value;
  remember({ c: chosen.value, mode: mode === "hybrid" ? null : mode, q: query.value.trim() ? query.value : null });
}

async function offerModels() {
  model.replaceChildren(choice("", "live"));
  try {
    const { live, models: all } = await versions(chosen.value, models);
    model.replaceChildren(choice("", `${live} (live)`), ...all
      .map((one) => one.version)
      .filter((version) => version !== live)
      .map((version) => choice(version, version)));
  } catch {
    // A damaged collection says so where it is searched.
  }
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
    hits.replaceChildren();
    heat.replaceChildren();
    problem.hidden = true;
    status.textContent = "";
    await showCollection();
    return;
  }
  const request = { query: words, ...options() };
  await answered((signal) => search(chosen.value, request, signal), words);
}

function options() {
  const filter = filterOf(wanted);
  return {
    mode: form.elements.mode.value,
    limit: LIMIT,
    explain: true,
    highlight: true,
    ...(model.value ? { model: model.value } : {}),
    ...(filter ? { filter } : {}),
  };
}

// `about` says what was asked when it was not words.
async function answered(ask, words, about = "") {
  const mine = (running = new AbortController());
  if (about) status.textContent = about;
  document.body.classList.add("busy");
  try {
    const answer = await ask(mine.signal);
    if (running === mine) show(answer, words, about);
  } catch (error) {
    if (running === mine && error.name !== "AbortError") showProblem(error);
  } finally {
    if (running === mine) document.body.classList.remove("busy");
  }
}

function show(answer, words, about) {
  problem.hidden = true;
  hint.hidden = true;
  hits.replaceChildren(...answer.hits.map((hit) => {
    const shown = hitElement(hit, words);
    shown.append(acts(hit, answer));
    return shown;
  }));
  status.textContent = [about, attentionInWords(answer)].filter(Boolean).join(". ");
  showHeat(answer);
  showStamp(answer);
  offerFilters(answer.hits);
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
  problem.textContent = error.message;
  problem.hidden = false;
  hint.hidden = true;
  hits.replaceChildren();
  heat.replaceChildren();
  status.textContent = "";
}

function showStamp(answer) {
  const parts = [`generation ${answer.generation}`, `model ${answer.model}`, `sequence ${answer.sequence}`];
  if (answer.took_ms !== undefined) parts.push(`${answer.took_ms.toFixed(1)} ms`);
  stamp.textContent = parts.join(" · ");
}

async function showCollection() {
  if (!chosen.value) return;
  try {
    const found = await describe(chosen.value);
    if (query.value.trim()) return; // somebody typed meanwhile
    hint.replaceChildren(
      element("h2", "", `${count(found.documents, "document")} to ask`),
      element("p", "",
        "Each hit shows its share of the attention: how much of the answer it would be. " +
        "Meaning compares embeddings, Words compares the words themselves, Hybrid adds the two."));
    hint.hidden = false;
    showStamp(found);
  } catch (error) {
    showProblem(error);
  }
}

// ---- what can be done with a hit

function acts(hit, answer) {
  const row = element("p", "acts");
  row.append(button("More like this", () => {
    const request = { like: [hit.id], ...options() };
    answered((signal) => similar(chosen.value, request, signal), "", `Like ${hit.title || hit.id}`);
  }));
  if (!consent.checked) return row;
  const said = element("span", "said");
  said.setAttribute("role", "status");
  const judge = (action, words) => async () => {
    try {
      await feedback(chosen.value, [event(action, hit, answer)]);
      said.textContent = words;
    } catch (error) {
      said.textContent = error.message;
    }
  };
  const up = button("👍", judge("thumbs_up", "Kept: it fits"), "thumb");
  up.setAttribute("aria-label", "This fits");
  const down = button("👎", judge("thumbs_down", "Kept: it does not fit"), "thumb");
  down.setAttribute("aria-label", "This does not fit");
  row.append(up, down, button("This is what I looked for", judge("click", "Kept: a click")), said);
  return row;
}

function event(action, hit, answer) {
  return {
    action_name: action,
    object_id: hit.id,
    query_id: answer.query_id,
    client_id: clientId(),
    event_attributes: { position: { ordinal: hit.rank } },
  };
}

function clientId() {
  let id = localStorage.getItem(CLIENT);
  if (!id) {
    id = `page-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
    localStorage.setItem(CLIENT, id);
  }
  return id;
}

// ---- filters: the fields that the present hits have

async function offerFilters(found) {
  const fields = [...new Set(found.flatMap((hit) => Object.entries(hit.metadata)
    .filter(([, value]) => ["string", "number", "boolean"].includes(typeof value))
    .map(([name]) => name)))].sort().slice(0, 6);
  const key = JSON.stringify([chosen.value, fields]);
  if (fields.length === 0 || key === offered) return;
  offered = key;
  try {
    const answer = await facets(chosen.value, { fields, limit: 8 });
    if (key !== offered) return;
    listed.replaceChildren(...Object.entries(answer.facets).map(([name, values]) => facet(name, values)));
    filters.classList.remove("empty");
  } catch {
    filters.classList.add("empty");
  }
}

function facet(name, values) {
  const group = element("fieldset", "facet", element("legend", "", name));
  for (const { value, documents } of values) {
    if (value === null) continue;
    const box = input("checkbox");
    box.checked = wanted[name]?.includes(value) ?? false;
    box.addEventListener("change", () => {
      const rest = (wanted[name] ?? []).filter((one) => one !== value);
      wanted = { ...wanted, [name]: box.checked ? [...rest, value] : rest };
    });
    group.append(element("label", "tick", box, element("span", "", ` ${value} `),
      element("span", "quiet", documents.toLocaleString("en"))));
  }
  return group;
}

function filterOf(ticked) {
  const conditions = Object.entries(ticked)
    .filter(([, values]) => values.length > 0)
    .map(([name, values]) => ({ [name]: { in: values } }));
  if (conditions.length === 0) return null;
  return conditions.length === 1 ? conditions[0] : { and: conditions };
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
    const all = [...hits.children];
    const present = all.indexOf(pressed.target.closest?.(".hit"));
    if (!typing && present < 0) return;
    const next = present + (pressed.key === "ArrowDown" ? 1 : -1);
    if (next >= all.length || (typing && pressed.key === "ArrowUp")) return;
    pressed.preventDefault();
    (next < 0 ? query : all[next]).focus();
  }
}
