// Training as something that anybody can do, and undo.

import { forget } from "./address.js";
import { models, promote, rollback, train } from "./api.js";
import { button, element, field, input, problemElement, select } from "./dom.js";
import { outcome } from "./jobs.js";
import { judgementsForm, queriesOf } from "./judgements.js";
import { count } from "./words.js";

export async function show(view, { collection, signal }) {
  const lineage = element("section");
  const accept = input("checkbox");
  const scope = select([["head", "head: seconds"], ["query", "query encoder too: minutes"]]);
  const objective = select([["", "as advised"], "listwise", "in-batch", "judged", "marginal"]);
  view.append(element("h1", "", "Train"), element("p", "quiet",
    "A new head learns from judged queries, from the feedback of people, or from the documents themselves. Some " +
    "queries are held out: it goes live only if it answers those better. The version before stays, one click away."));

  const start = async (request, result) => {
    const task = await train(collection, {
      ...request, scope: scope.value, accept: accept.checked,
      ...(objective.value ? { objective: objective.value } : {}),
    });
    const done = await outcome(result, task.id, signal, trainedElement);
    forget(collection);
    await drawLineage(lineage, collection);
    return done;
  };
  const dials = element("div", "row", field("What learns", scope), field("Objective", objective),
    element("label", "tick", accept, element("span", "", "Let it go live whatever held-out queries say")));
  view.append(dials, element("h2", "", "From judgements"),
    judgementsForm("Train on these", (given, result) => {
      const judgements = given.training ?? given.judgements;
      return start({ queries: queriesOf(given, judgements), judgements }, result);
    }),
    element("h2", "", "Without judgements"), other("Train from the documents alone", { self_supervised: true }, start),
    other("Train from feedback", { from: "feedback" }, start), lineage);
  await drawLineage(lineage, collection);
}

function other(text, request, start) {
  const result = element("div");
  const made = button(text, async () => {
    made.disabled = true;
    try {
      await start(request, result);
    } catch (error) {
      if (error.name !== "AbortError") result.replaceChildren(problemElement(error));
    } finally {
      made.disabled = false;
    }
  }, "main");
  return element("section", "", made, result);
}

function trainedElement({ result }) {
  const box = element("div", "verdict", element("p", "", result.live ? `${result.model} answers now.`
    : `${result.model} is kept, but does not answer.`));
  if (result.gate?.decision) box.append(element("p", "quiet", result.gate.decision.text));
  for (const { name, queries, before, after, difference } of result.gate?.slices ?? []) {
    const interval = difference ? ` (${difference.low.toFixed(4)} to ${difference.high.toFixed(4)})` : "";
    box.append(element("p", "quiet", `${name}: ${count(queries, "held-out query", "held-out queries")}, ` +
      `nDCG@10 ${number(before)} → ${number(after)}${interval}`));
  }
  return box;
}

function number(value) {
  return typeof value === "number" ? value.toFixed(4) : "–";
}

// ---- versions: a tree by parents

async function drawLineage(section, collection) {
  const { live, models: all } = await models(collection);
  const children = new Map();
  for (const one of all) (children.get(one.parent) ?? children.set(one.parent, []).get(one.parent)).push(one);
  const branch = (parent) => element("ul", "tree", ...(children.get(parent) ?? []).map((one) => {
    const item = versionElement(one, live, section, collection);
    if (children.has(one.version)) item.append(branch(one.version));
    return item;
  }));
  const back = button("Roll back", () => act(section, collection, () => rollback(collection)), "link");
  back.title = "The version that answered before answers again";
  section.replaceChildren(element("h2", "", "Versions"),
    element("p", "quiet", "Which came from which."), branch(null), back);
}

function versionElement({ version, record }, live, section, collection) {
  const learned = [record.scope, record.examples && count(record.examples, "example")].filter(Boolean).join(", ");
  const item = element("li", "", element("strong", "", version), " ",
    version === live ? element("span", "moved", "answers now")
      : button("Promote", () => act(section, collection, () => promote(collection, version)), "link"),
    element("span", "quiet", ` ${learned || "untrained"}`));
  const verdict = record.verdict ?? record.gate?.reason;
  if (verdict) item.append(element("br"), element("span", "quiet", verdict));
  item.setAttribute("aria-label", version === live ? `${version}, answers now` : version);
  return item;
}

async function act(section, collection, doIt) {
  try {
    await doIt();
    forget(collection);
    await drawLineage(section, collection);
  } catch (error) {
    section.append(problemElement(error));
  }
}
