// Long work: what runs, how far it is, what came of it.

import { cancel, follow, pause, task, tasks } from "./api.js";
import { curves } from "./charts.js";
import { button, element, problemElement, worded } from "./dom.js";
import { filesInWords } from "./upload.js";
import { headroomInWords } from "./words.js";

const STAGES = { validate: "some held out", train: "all examples" };
const STEPS = { // of a task, as it names them
  files: "Reading files", read: "Reading", tokens: "Cutting into tokens", encode: "Encoding", embeddings: "Writing embeddings",
  keys: "Building keys", keyword: "Building the index of words", digests: "Checking", settings: "Trying settings",
  validate: "Learning, with some queries held out", train: "Learning from all", search: "Searching",
  evaluate: "Answering the queries", judge: "Judging", purge: "Writing the database anew",
};
const AGAIN_MS = 1000; // after a stream that ended before its task
const RUNNING = new Set(["queued", "running"]);

export async function show(view, { signal }) {
  const list = element("div");
  view.append(element("h1", "", "Jobs"), list);
  const found = await tasks();
  if (found.length === 0) {
    list.append(element("p", "quiet", "Nothing was asked for yet: training, tuning, evaluation and upkeep appear here."));
    return;
  }
  for (const one of found) {
    const holder = element("section", "job");
    list.append(holder);
    if (RUNNING.has(one.state)) outcome(holder, one.id, signal, () => "", named(one)).catch((error) => {
      if (error.name !== "AbortError") holder.append(problemElement(error));
    });
    else holder.append(...taskElements(one), ...(one.kind === "train" ? [history(one, signal)] : []));
  }
}

// What a training that has ended had said meanwhile, when somebody wants to see it.
function history({ id }, signal) {
  const drawer = element("details", "why", element("summary", "", "How it went"));
  drawer.addEventListener("toggle", async () => {
    if (!drawer.open || drawer.childElementCount > 1) return;
    const shown = element("div");
    drawer.append(shown);
    try {
      const told = figures(shown);
      await follow(id, told, signal);
      if (!shown.childElementCount) shown.append(element("p", "quiet", "It ended before it had learned anything."));
    } catch (error) {
      if (error.name !== "AbortError") shown.append(problemElement(error));
    }
  });
  return drawer;
}

// The heading of a task: what, where, how far.
export function named({ kind, collection, state }) {
  return element("h2", "", `${kind} · ${collection} · ${state}`);
}

// Follow a task in `holder`; when it is done, `finish` makes an element of it. Resolves with the task. A `heading`
// stands above it meanwhile, where nothing else says which task it is.
export async function outcome(holder, id, signal, finish, heading = "") {
  const bar = element("progress");
  bar.max = 1;
  bar.setAttribute("aria-label", "Progress");
  const said = element("p", "quiet");
  said.setAttribute("role", "status");
  const shown = element("div");
  const stop = button("Cancel", async () => {
    try {
      await cancel(id);
    } catch (error) {
      said.textContent = error.message;
    }
  }, "link");
  said.textContent = "Waiting for its turn, then for its process to start …"; // words from the first second
  holder.replaceChildren(heading, bar, said, stop, shown);
  const told = figures(shown);
  const hear = (kind, data) => {
    if (kind === "progress" && data.total) {
      bar.value = data.done / data.total;
      const left = data.done < data.total && typeof data.eta_s === "number" ? `, ${Math.ceil(data.eta_s)} s left` : "";
      said.textContent = `${STEPS[data.stage] ?? data.stage}: ${data.done} of ${data.total}${left}`;
    }
    told(kind, data);
  };
  let done = null, problem = ""; // of the stream; the task goes on without it
  while (!done || RUNNING.has(done.state)) {
    if (done) await pause(AGAIN_MS, signal);
    try {
      await follow(id, hear, signal);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (!problem) problem = problemElement(error);
      holder.append(problem);
    }
    done = await task(id);
  }
  if (problem) problem.remove();
  stop.remove();
  bar.remove();
  if (heading) heading.remove();
  said.textContent = "";
  const end = done.state === "done" ? finish(done) : ""; // says the verdict, where there is one
  holder.prepend(...taskElements(done, !end, end));
  return done;
}

// Hears what a training says, and draws it: what is left to gain, the loss, held-out queries beside it.
function figures(holder) {
  const room = element("p", "quiet"), charts = element("div", "charts");
  const measured = new Map(); // name of a curve → [[epoch, value], …]
  const add = (name, epoch, value) => {
    if (typeof value !== "number") return;
    const points = measured.get(name) ?? measured.set(name, []).get(name);
    if (points.length && epoch <= points.at(-1)[0]) points.length = 0; // the next fold
    points.push([epoch, value]);
  };
  return (kind, data) => {
    if (kind === "headroom") {
      room.replaceChildren(...worded(headroomInWords(data)));
      holder.prepend(room);
    }
    if (kind !== "metric") return;
    add(STAGES[data.stage] ?? data.stage, data.epoch, data.loss);
    for (const part of ["seen", "unseen"]) {
      const name = `${part} documents`, points = measured.get(name);
      const started = points?.length && data.epoch > points.at(-1)[0]; // else a fold's first checkpoint
      if (!started) add(name, 0, data.ndcg_at_10_before?.[part]);
      add(name, data.epoch, data.ndcg_at_10?.[part]);
    }
    const series = (heldOut) => [...measured].filter(([name]) => name.endsWith(" documents") === heldOut)
      .map(([name, points]) => ({ name, points }));
    const scores = series(true);
    charts.replaceChildren(curves(series(false), { label: "Loss by epoch", low: 0 }),
      ...(scores.length ? [curves(scores, { label: "nDCG@10 of held-out queries", low: 0, high: 1 })] : []));
    holder.append(charts);
  };
}

function taskElements(one, verdict = true, end = "") {
  const { created, problem, result } = one;
  const made = [named(one), element("p", "quiet", new Date(created).toLocaleString()), end];
  if (problem) made.push(problemElement(new Error(problem.detail)));
  if (result?.files) made.push(element("p", "", filesInWords(result)));
  if (result?.verdict && verdict) made.push(element("p", "", element("strong", "", result.verdict)));
  if (result?.reason) made.push(element("p", result.verdict ? "quiet" : "", ...worded(result.reason)));
  return made;
}
