// Long work: what runs, how far it is, what came of it.

import { cancel, follow, task, tasks } from "./api.js";
import { curves } from "./charts.js";
import { button, element, problemElement } from "./dom.js";

const STAGES = { validate: "some held out", train: "all examples" };
const RUNNING = new Set(["queued", "running"]);

export async function show(view, { signal }) {
  const list = element("div");
  view.append(element("h1", "", "Jobs"), list);
  const found = await tasks();
  if (found.length === 0) {
    list.append(element("p", "quiet", "Nothing was asked for yet: train, evaluate and refresh appear here."));
    return;
  }
  for (const one of found) {
    const holder = element("section", "job");
    list.append(holder);
    if (RUNNING.has(one.state)) outcome(holder, one.id, signal, () => element("span"));
    else holder.append(...taskElements(one));
  }
}

// Follow a task in `holder`; when it is done, `finish` makes an element of it. Resolves with the task.
export async function outcome(holder, id, signal, finish) {
  const bar = element("progress");
  bar.max = 1;
  bar.setAttribute("aria-label", "Progress");
  const said = element("p", "quiet");
  said.setAttribute("role", "status");
  const chart = element("div");
  const stop = button("Cancel", async () => {
    try {
      await cancel(id);
    } catch (error) {
      said.textContent = error.message;
    }
  }, "link");
  holder.replaceChildren(bar, said, stop, chart);
  const measured = new Map(); // stage → [[epoch, loss], …], and held-out scores where they are told
  try {
    await follow(id, (kind, data) => {
      if (kind === "progress" && data.total) {
        bar.value = data.done / data.total;
        const left = data.eta_s === null || data.eta_s === undefined ? "" : `, ${Math.ceil(data.eta_s)} s left`;
        said.textContent = `${data.stage}: ${data.done} of ${data.total}${left}`;
      }
      if (kind === "metric") draw(chart, measured, data);
    }, signal);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    holder.append(problemElement(error));
  }
  const done = await task(id);
  stop.remove();
  bar.remove();
  said.textContent = "";
  holder.prepend(...taskElements(done));
  if (done.state === "done") holder.append(finish(done));
  return done;
}

function draw(chart, measured, { stage, epoch, loss, seen, unseen }) {
  const add = (name, value) => {
    if (typeof value !== "number") return;
    const points = measured.get(name) ?? measured.set(name, []).get(name);
    if (points.length && epoch <= points.at(-1)[0]) points.length = 0; // the next fold, or all examples
    points.push([epoch, value]);
  };
  add(STAGES[stage] ?? stage, loss);
  add("nDCG@10, seen", seen);
  add("nDCG@10, unseen", unseen);
  const series = (wanted) => [...measured].filter(([name]) => wanted(name)).map(([name, points]) => ({ name, points }));
  const scores = series((name) => name.startsWith("nDCG"));
  chart.replaceChildren(curves(series((name) => !name.startsWith("nDCG")), { label: "Loss by epoch" }),
    ...(scores.length ? [curves(scores, { label: "Held-out queries" })] : []));
}

function taskElements({ kind, collection, state, created, problem, result }) {
  const made = [element("h2", "", `${kind} · ${collection} · ${state}`),
    element("p", "quiet", new Date(created).toLocaleString())];
  if (problem) made.push(problemElement(new Error(problem.detail)));
  if (result?.reason) made.push(element("p", "", result.reason));
  return made;
}
