// Training as something that anybody can do, and undo.

import { forget } from "./address.js";
import { models, promote, rollback, train } from "./api.js";
import { button, element, field, input, problemElement, select, table } from "./dom.js";
import { outcome } from "./jobs.js";
import { judgementsForm } from "./judgements.js";

export async function show(view, { collection, signal }) {
  const lineage = element("section");
  const accept = input("checkbox");
  const objective = select(["listwise", "in-batch", "judged", "marginal"]);
  view.append(element("h1", "", "Train"), element("p", "quiet",
    "A new head learns from judged queries, from the feedback of people, or from the documents themselves. Some " +
    "queries are held out: it goes live only if it answers those better. The version before stays, one click away."));

  const start = async (request, result) => {
    const task = await train(collection, { ...request, objective: objective.value, accept: accept.checked });
    const done = await outcome(result, task.id, signal, trainedElement);
    forget(collection);
    await drawLineage(lineage, collection);
    return done;
  };
  const dials = element("div", "row", field("Objective", objective),
    element("label", "tick", accept, element("span", "", "Let it go live whatever held-out queries say")));
  view.append(dials, element("h2", "", "From judgements"),
    judgementsForm("Train on these", (given, result) => start(given, result)),
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
  for (const slice of result.gate?.slices ?? []) {
    box.append(element("p", "quiet",
      `${slice.name}: ${slice.queries} held-out queries, nDCG@10 ${number(slice.before)} → ${number(slice.after)}`));
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
  const rows = [];
  const visit = (one, depth) => {
    rows.push(rowOf(one, depth, live, section, collection));
    for (const child of children.get(one.version) ?? []) visit(child, depth + 1);
  };
  for (const root of children.get(null) ?? []) visit(root, 0);
  const back = button("Roll back", () => act(section, collection, () => rollback(collection)), "link");
  section.replaceChildren(element("h2", "", "Versions"),
    table(["version", "", "verdict", "examples", ""], rows, "Which came from which"), back);
}

function rowOf(one, depth, live, section, collection) {
  const name = element("span", "", `${"└ ".repeat(depth ? 1 : 0)}${one.version}`);
  name.style.setProperty("padding-inline-start", `${Math.max(0, depth - 1)}em`);
  const state = one.version === live ? element("strong", "", "answers now")
    : button("Promote", () => act(section, collection, () => promote(collection, one.version)), "link");
  return [name, one.record.scope ?? "", one.record.verdict ?? "", one.record.examples ?? "", state];
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
