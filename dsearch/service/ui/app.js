// The page. Each view is a module that draws itself into a container when it is first looked at.
//
//   api.js     requests, problems as errors         address.js  the address is the state
//   words.js   numbers as words, no DOM             dom.js      elements, text only ever as text
//   hits.js    one hit as elements                  charts.js   curves, points; heatmap.js
//   search.js  compare.js  train.js  collection.js  attend.js  jobs.js  console.js     the views

import { remember, state } from "./address.js";
import { aliases, collections, keepKey, key, stopped, told } from "./api.js";
import { element, problemElement, worded } from "./dom.js";
import { judgeByKey } from "./judging.js";
import { changedCollection, noCollection, showSearch, startSearch } from "./search.js";

const at = (id) => document.getElementById(id);
const chosen = at("collection"), search = at("search"), unlock = at("unlock");
const VIEWS = ["search", "compare", "train", "collection", "attend", "jobs", "console"];

let view = at("view"); // anew for each view: what a former one still draws is seen nowhere
let asked = false; // what there is: `load` shows then
let leave = null; // ends the present view

async function show() {
  if (!asked) return;
  const given = state();
  const name = VIEWS.includes(given.get("v")) ? given.get("v") : "search";
  if ([...chosen.options].some((one) => one.value === given.get("c"))) chosen.value = given.get("c");
  leave?.abort();
  leave = new AbortController();
  for (const link of document.querySelectorAll("#views a[data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = name === "search" ? "dsearch" : `${name[0].toUpperCase()}${name.slice(1)} · dsearch`;
  search.hidden = name !== "search";
  const fresh = view.cloneNode(false);
  view.replaceWith(fresh);
  view = fresh;
  view.hidden = name === "search";
  if (name === "search") {
    if (!chosen.disabled) await showSearch();
    return;
  }
  at("stamp").textContent = "";
  if (chosen.disabled && !["jobs", "console"].includes(name)) {
    view.append(element("h1", "", link(name).textContent), element("p", "quiet",
      "There is no collection yet. Make one of files, under Search."));
    return;
  }
  const mine = leave.signal;
  try {
    const [module] = await Promise.all([import(`./${name}.js`).catch((error) => {
      throw error instanceof TypeError ? stopped() : error; // the file did not come
    }), dressed()]);
    if (!mine.aborted) await module.show(view, { collection: chosen.value, signal: mine });
  } catch (error) {
    if (!mine.aborted && error.name !== "AbortError") view.append(problemElement(error));
  }
}

const link = (name) => document.querySelector(`#views a[data-view="${name}"]`);

// The style of the views, once.
function dressed() {
  if (document.querySelector("link[href$='/views.css']")) return null;
  const sheet = element("link");
  sheet.rel = "stylesheet";
  sheet.href = "/ui/views.css";
  const arrived = new Promise((resolve) => {
    for (const end of ["load", "error"]) sheet.addEventListener(end, resolve);
  });
  document.head.append(sheet);
  return arrived;
}

function option(collection) {
  const text = collection.problem
    ? `${collection.name} (damaged)`
    : `${collection.name} (${collection.documents.toLocaleString("en")})`;
  const made = element("option", "", text);
  made.value = collection.name;
  return made;
}

function go(event) {
  const link = event.target.closest("a[data-view]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  remember({ v: link.dataset.view === "search" ? null : link.dataset.view });
  show();
}

async function start() {
  startSearch();
  at("views").addEventListener("click", go);
  chosen.addEventListener("change", () => {
    remember({ c: chosen.value });
    if (search.hidden) show();
    else changedCollection();
  });
  addEventListener("hashchange", show);
  addEventListener("keydown", judgeByKey);
  told.addEventListener("locked", () => {
    unlock.hidden = false;
    at("key").focus();
  });
  unlock.addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(at("key").value.trim());
    at("key").value = "";
    unlock.hidden = true;
    load();
  });
  await load();
}

async function load() {
  document.body.classList.add("busy");
  try {
    const found = await collections().finally(() => {
      asked = true;
      document.body.classList.remove("busy");
    });
    chosen.replaceChildren(...found.map(option));
    if (found.length === 0) {
      chosen.disabled = true;
      chosen.append(element("option", "", "none yet"));
      await noCollection();
    }
    const name = state().get("c");
    if (name && !found.some((one) => one.name === name)) { // an alias?
      remember({ c: (await aliases().catch(() => ({})))[name] ?? name });
    }
    await show();
  } catch (error) {
    at("problem").replaceChildren(...worded(error.message));
    at("problem").hidden = error.status === 401 && !key(); // the form says it
  }
}

start();
