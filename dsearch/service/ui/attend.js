// Attention itself: choose what compares and how to pool, and watch the weights; on a shop, and on documents.

import { remember, state } from "./address.js";
import { attend, fieldsOf, list, predict } from "./api.js";
import { bars } from "./charts.js";
import { element, field, input, problemElement, select } from "./dom.js";
import { kernelWeights, pooled, SHOP } from "./shop.js";
import { percent } from "./words.js";

const SHOWN = 15;

export async function show(view, { collection, signal }) {
  view.append(element("h1", "", "Attend"), shop());
  const query = input("search", { maxlength: 8192, placeholder: "What should be attended to?" });
  query.setAttribute("aria-label", "Query");
  query.value = state().get("q") ?? "";
  const { score: scores, pooling: poolings, width: widths, match_field: matches } = await fieldsOf("AttendRequest");
  const score = select(scores.enum.filter((name) => !matches["x-scores"].includes(name))), pooling = select(poolings.enum);
  const width = slider(0.05, 2, 0.05, 0.8), temperature = slider(0.01, 1, 0.01, 0.05);
  const predicted = select([["", "nothing"]]);
  const result = element("div");
  let turn = 0;
  const form = element("form", "row", query, element("button", "main", "Attend"));
  const dials = element("div", "row", field("Score", score), field("Pooling", pooling),
    field("Width", width), field("Temperature", temperature), field("Predict", predicted));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    remember({ q: query.value.trim() || null });
    run();
  });
  dials.addEventListener("change", () => run());
  view.append(element("h2", "", `On ${collection}`), form, dials, result);
  const { documents } = await list(collection, { limit: 20 });
  for (const name of metadataOf(documents)) {
    const option = element("option", "", name);
    option.value = name;
    predicted.append(option);
  }
  if (query.value.trim()) await run();

  async function run() {
    const kernel = widths["x-scores"].includes(score.value);
    width.disabled = !kernel;
    if (!query.value.trim()) return;
    const mine = ++turn;
    const request = {
      queries: [query.value], mode: "dense", candidates: 100, score: score.value, pooling: pooling.value,
      ...(kernel ? { width: Number(width.value) } : { temperature: Number(temperature.value) }),
    };
    try {
      const answer = await attend(collection, request, signal);
      if (mine !== turn) return; // the dials were moved meanwhile: a later answer is shown
      const [{ ids, weights }] = answer.results;
      result.replaceChildren(ids.length > 0 ? bars(ids.slice(0, SHOWN).map((id, at) => ({
        name: id, share: weights[at], text: percent(weights[at]),
      }))) : element("p", "quiet", "No document to attend to."));
      if (predicted.value) {
        const told = await predict(collection, { ...request, field: predicted.value }, signal);
        if (mine === turn) result.prepend(predictionElement(predicted.value, told.results[0]));
      }
    } catch (error) {
      if (mine === turn && error.name !== "AbortError") result.replaceChildren(problemElement(error));
    }
  }
}

function predictionElement(name, { kind, mean, spread, labels }) {
  const text = kind === "number" ? `${name} ≈ ${mean.toFixed(3)} ± ${spread.toFixed(3)}`
    : kind === "label" ? labels.slice(0, 5).map((one) => `${one.label} ${percent(one.share)}`).join(" · ")
      : kind === "vector" ? `${name}: a vector of ${mean.length} numbers` : `no candidate has ${name}`;
  return element("p", "prediction", text);
}

function metadataOf(documents) {
  const names = new Set();
  for (const one of documents) {
    if (one.value !== null && one.value !== undefined) names.add("value");
    for (const [name, value] of Object.entries(one.metadata)) {
      if (["string", "number", "boolean"].includes(typeof value)) names.add(name);
    }
  }
  return [...names].sort();
}

// ---- the shop: what you want is the query, what is on the shelves the keys, what it costs the values

function shop() {
  const wants = SHOP.features.map((name, at) => [name, slider(0, 1, 0.05, SHOP.query[at])]);
  const pooling = select(["soft", "hard", "uniform"]), width = slider(0.05, 1.5, 0.05, 0.3);
  const result = element("div");
  const draw = () => {
    const query = wants.map(([, control]) => Number(control.value));
    const weights = kernelWeights(query, pooling.value, Number(width.value));
    const { mean, spread } = pooled(weights);
    width.disabled = pooling.value !== "soft";
    result.replaceChildren(
      element("p", "prediction", `You would pay ${mean.toFixed(2)} ± ${spread.toFixed(2)}`),
      bars(SHOP.items.map((item, at) => ({
        name: `${item.name} (${item.price.toFixed(2)})`, share: weights[at], text: percent(weights[at]),
      }))));
  };
  const dials = element("div", "row", ...wants.map(([name, control]) => field(name, control)),
    field("Pooling", pooling), field("Width", width));
  dials.addEventListener("input", draw);
  draw();
  return element("section", "", element("h2", "", "In the supermarket"), element("p", "quiet",
    "You want something: that is the query. Every thing on the shelves has a key, how sweet, fresh and filling " +
    "it is. Its value is its price. Attention pools the prices of what fits."), dials, result);
}

function slider(low, high, step, value) {
  const made = input("range", { min: low, max: high, step });
  made.value = value;
  return made;
}
