// Training as something that anybody can do, and undo.

import { key, judgements, models, promote, rollback, tasks, toJudge, train } from "./api.js";
import { button, element, field, input, problemElement, select } from "./dom.js";
import { named, outcome } from "./jobs.js";
import { judgementsForm, queriesOf } from "./judgements.js";
import { agreed, clientId, withdraw } from "./judging.js";
import { count } from "./words.js";

const SUGGESTED = 8;

export async function show(view, { collection, signal }) {
  const lineage = element("section");
  const accept = input("checkbox");
  const scope = select([["head", "head: seconds"], ["query", "query encoder too: minutes"]]);
  const objective = select([["", "as advised"], "listwise", "judged", "marginal"]);
  view.append(element("h1", "", "Train"), element("p", "quiet",
    "A new head learns from judged queries, from the feedback of people, or from the documents themselves. Some " +
    "queries are held out: it goes live only if it answers those better. The version before stays, one click away."));

  const follow = async (id, result, heading) => {
    const done = await outcome(result, id, signal, (ended) => trainedElement(ended, lineage, collection), heading);
    await drawLineage(lineage, collection);
    return done;
  };
  const start = async (request, result) => {
    result.replaceChildren(element("p", "quiet", "The training is handed in …"));
    const { from } = request;
    const task = await train(collection, {
      ...request, accept: accept.checked, ...(from ? {} : { scope: scope.value }),
      ...(objective.value ? { objective: objective.value } : {}),
    });
    return follow(task.id, result);
  };
  const dials = element("div", "row", field("What learns", scope), field("Objective", objective),
    element("label", "tick", accept, element("span", "", "Let it go live whatever held-out queries say")));
  const present = element("section");
  view.append(present, dials, element("h2", "", "From your judgements"), await ownSection(collection, start, signal),
    element("h2", "", "From files with judgements"),
    judgementsForm("Train on these", (given, result) => {
      const judgements = given.training ?? given.judgements;
      return start({ queries: queriesOf(given, judgements), judgements }, result);
    }),
    element("h2", "", "Without judgements"), other("Train from the documents alone", { self_supervised: true }, start),
    lineage);
  await drawLineage(lineage, collection);
  const running = (await tasks()).find((one) => one.kind === "train" && one.collection === collection
    && ["queued", "running"].includes(one.state));
  if (running) follow(running.id, present, named(running)).catch((error) => { // it was begun before this page was loaded
    if (error.name !== "AbortError") present.append(problemElement(error));
  });
}

// What this person judged, what is missing, what to judge next, and two ways to learn from it.
async function ownSection(collection, start, signal) {
  const own = await judgements(collection, clientId());
  const judged = Object.values(own.judgements).reduce((sum, of) => sum + Object.keys(of).length, 0);
  const bar = element("progress");
  bar.max = own.answered + own.missing;
  bar.value = own.answered;
  bar.setAttribute("aria-label", "Judged queries of those that are needed");
  const words = own.missing === 0 ? "Enough to tell a gain from chance."
    : `About ${count(own.missing, "further query", "further queries")} until a training can be told from chance; ` +
      "with fewer, a version seldom goes live.";
  const box = element("section", "own", judged === 0
    ? element("p", "", element("strong", "", "You have judged nothing yet: "), "press “This is the answer” or " +
      `“This fits” at hits of a search. ${words}`)
    : element("p", "", element("strong", "",
      `You judged ${count(judged, "document")} for ${count(Object.keys(own.queries).length, "query", "queries")}`),
    `, of which ${own.answered} ${own.answered === 1 ? "has" : "have"} an answer. ${words}`), bar);
  if (own.answered > 0) {
    box.append(other("Train on your judgements", { queries: own.queries, judgements: own.judgements }, start));
    if (!key()) {
      box.append(other("Train on everybody’s clicks, checked by yours",
        { from: "feedback", trusted_keys: [`client:${clientId()}`] }, start));
    }
    box.append(download(collection, own));
  }
  if (agreed()) {
    const stop = button("Keep no further judgements", () => {
      withdraw();
      stop.replaceWith(element("span", "quiet", "Nothing more is kept until you agree again."));
    }, "link");
    box.append(stop);
  }
  const next = element("details", "why", element("summary", "", "What to judge next"));
  next.addEventListener("toggle", () => {
    if (next.open && next.childElementCount === 1) suggest(next, collection, signal);
  });
  box.append(next);
  return box;
}

// The queries on which what answers and another version differ most.
async function suggest(holder, collection, signal) {
  const list = element("div", "", element("p", "quiet", "Both versions answer some queries …"));
  holder.append(list);
  try {
    const { model, against, queries } = await toJudge(collection, clientId(), SUGGESTED, signal);
    list.replaceChildren(element("p", "quiet", queries.length > 0
      ? `${model} and ${against} differ most on these; a judgement of them tells most.`
      : `${model} and ${against} answer every query alike.`), element("ul", "", ...queries.map((one) => {
      const link = element("a", "", one.query);
      link.href = `#${new URLSearchParams({ c: collection, q: one.query })}`;
      return element("li", "", link, element("span", "quiet",
        ` ${Math.round(one.difference * 100)} % different${one.logged ? "" : ", made from a document"}`));
    })));
  } catch (error) {
    if (error.name !== "AbortError") list.replaceChildren(problemElement(error));
  }
}

function download(collection, own) {
  const rows = Object.entries(own.judgements).flatMap(([id, of]) =>
    Object.entries(of).map(([document, grade]) => ({ query: own.queries[id], document, grade })));
  const cell = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const table = [["query", "document", "grade"], ...rows.map((row) => Object.values(row).map(String))];
  const save = (text, type, suffix) => () => {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([`${text()}\n`], { type }));
    link.download = `${collection}-judgements.${suffix}`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return element("p", "", "Download your judgements: ",
    button("CSV", save(() => table.map((line) => line.map(cell).join(",")).join("\n"), "text/csv", "csv"), "link"),
    " or ", button("JSON lines",
      save(() => rows.map((row) => JSON.stringify(row)).join("\n"), "application/x-ndjson", "jsonl"), "link"));
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

function trainedElement({ result }, lineage, collection) {
  const box = element("div", "verdict", element("p", "", element("strong", "", result.verdict)),
    element("p", "", result.live ? `${result.model} answers now.` : `${result.model} is kept, but does not answer.`));
  if (result.live && result.previous) {
    const undo = button("Undo", () => act(lineage, collection, async () => {
      await promote(collection, result.previous); // a rollback goes back by one, and a training may add two
      undo.replaceWith(element("span", "moved", "Undone: the version before answers again."));
    }), "main");
    box.append(undo);
  }
  if (result.reason?.startsWith("against the tuned search")) { // what follows is not of the version that answers
    box.append(element("p", "quiet", "What was trained, against the tuned search:"));
  }
  if (result.gate?.decision) box.append(element("p", "quiet", result.gate.decision.text));
  for (const { name, queries, before, after, difference } of result.gate?.slices ?? []) {
    if (!queries) continue;
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
    const item = versionElement(one, one.version === live, section, collection);
    if (children.has(one.version)) item.append(branch(one.version));
    return item;
  }));
  const back = button("Roll back", () => act(section, collection, () => rollback(collection)), "link");
  back.title = "The version that answered before answers again";
  section.replaceChildren(element("h2", "", "Versions"),
    element("p", "quiet", "Which came from which."), branch(null), all.length > 1 ? back : "");
}

function versionElement({ version, record, problem }, live, section, collection) {
  const state = problem ? `no longer served: ${problem}` : live ? "answers now" : "";
  const learned = [record.scope, record.examples && count(record.examples, "example")].filter(Boolean).join(", ");
  const item = element("li", "", element("strong", "", version), " ",
    state ? element("span", "moved", state)
      : button("Promote", () => act(section, collection, () => promote(collection, version)), "link"),
    element("span", "quiet", ` · ${learned || "untrained"}`));
  const verdict = record.verdict ?? record.gate?.reason;
  if (verdict) item.append(element("br"), element("span", "quiet", verdict));
  item.setAttribute("aria-label", state ? `${version}, ${state}` : version);
  return item;
}

async function act(section, collection, doIt) {
  try {
    await doIt();
    await drawLineage(section, collection);
  } catch (error) {
    section.append(problemElement(error));
  }
}
