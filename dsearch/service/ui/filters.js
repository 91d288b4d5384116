// Filters: of the fields that the present hits have, those worth filtering by. What is ticked is in the address.

import { remember, state } from "./address.js";
import { facets } from "./api.js";
import { element, input } from "./dom.js";

const FIELDS = 12; // that are counted
const MOST_VALUES = 12; // of a field with more nobody reads the list
const SHORT = 4; // values that are read at a glance
const WIDE = "(min-width: 64rem)"; // there is room beside the hits

const panel = document.getElementById("filters"), listed = document.getElementById("facets");
let offered = "";

export async function offer(collection, hits) {
  const fields = [...new Set(hits.flatMap((hit) => Object.entries(hit.metadata)
    .filter(([name, value]) => ["string", "number", "boolean"].includes(typeof value)
      && !(name === "size" && "path" in hit.metadata)) // bytes of a file are no kind
    .map(([name]) => name)))].sort().slice(0, FIELDS);
  const key = JSON.stringify([collection, fields, state().get("f")]);
  if (key === offered) { // another answer, or another collection, may have hidden them meanwhile
    panel.hidden = listed.childElementCount === 0;
    return;
  }
  if (fields.length === 0 && !state().get("f")) {
    panel.hidden = true;
    return;
  }
  try {
    const answer = await facets(collection, { fields: [...new Set([...fields, ...Object.keys(ticked())])],
      limit: MOST_VALUES + 1 });
    const useful = Object.entries(answer.facets).filter(([name, values]) => worthwhile(values) || name in ticked());
    listed.replaceChildren(...useful.map(([name, values]) => facet(name, values)));
    if (useful.length > 0 && panel.hidden) panel.open = matchMedia(WIDE).matches;
    panel.hidden = useful.length === 0;
    offered = key;
  } catch {
    panel.hidden = true;
  }
}

// Few values, and not a different one for each document.
export function worthwhile(values, most = MOST_VALUES) {
  const real = values.filter((one) => one.value !== null);
  if (real.every((one) => /^\d{4}-\d\d-\d\d/.test(String(one.value)))) return false; // a moment is no kind
  const documents = real.reduce((sum, one) => sum + one.documents, 0);
  return real.length >= 2 && real.length <= most && real.some((one) => one.documents > 1)
    && (real.length <= SHORT || 2 * real.length <= documents);
}

function ticked() {
  try {
    const kept = JSON.parse(state().get("f") ?? "{}");
    return kept && typeof kept === "object" && !Array.isArray(kept) ? kept : {};
  } catch {
    return {};
  }
}

function facet(name, values) {
  const group = element("fieldset", "facet", element("legend", "", name));
  for (const { value, documents } of values.slice(0, MOST_VALUES)) {
    if (value === null) continue;
    const box = input("checkbox");
    box.checked = Array.isArray(ticked()[name]) && ticked()[name].includes(value);
    box.addEventListener("change", () => { // before the search that this change brings
      const all = ticked(), rest = (Array.isArray(all[name]) ? all[name] : []).filter((one) => one !== value);
      const now = box.checked ? [...rest, value] : rest;
      if (now.length > 0) all[name] = now;
      else delete all[name];
      remember({ f: Object.keys(all).length > 0 ? JSON.stringify(all) : null });
    });
    group.append(element("label", "tick", box, element("span", "", ` ${value === "" ? "(empty)" : value} `),
      element("span", "quiet", documents.toLocaleString("en"))));
  }
  return group;
}
