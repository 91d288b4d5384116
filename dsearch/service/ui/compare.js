// Two models or modes side by side: for one query, and over a set of judged queries.

import { remember, state, versions } from "./address.js";
import { evaluate, models, search } from "./api.js";
import { element, field, input, problemElement, select, table } from "./dom.js";
import { attention } from "./hits.js";
import { judgementsForm } from "./judgements.js";
import { outcome } from "./jobs.js";
import { attentionInWords } from "./words.js";

const LIMIT = 10;

export async function show(view, { collection, signal }) {
  const { live, models: all } = await versions(collection, models);
  const systems = [];
  for (const version of [live, ...all.map((one) => one.version).filter((one) => one !== live)]) {
    systems.push([`${version} hybrid`, `${version}${version === live ? " (live)" : ""}, hybrid`],
      [`${version} dense`, `${version}, meaning`]);
  }
  systems.push([`${live} keyword`, "words alone"]);
  const left = select(systems, state().get("a") ?? systems[1][0]);
  const right = select(systems, state().get("b") ?? systems[0][0]);
  for (const one of [left, right]) if (one.selectedIndex < 0) one.selectedIndex = 0;
  const query = input("search", { maxlength: 8192, placeholder: "A query for both", "aria-label": "Query" });
  query.value = state().get("q") ?? "";
  const columns = element("div", "columns");
  const form = element("form", "row", field("Left", left), field("Right", right), query,
    submit("Compare"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  view.append(element("h1", "", "Compare"), form, columns);

  async function run() {
    remember({ a: left.value, b: right.value, q: query.value.trim() || null });
    if (!query.value.trim()) return;
    columns.replaceChildren();
    try {
      const [a, b] = await Promise.all([left.value, right.value].map((system) => {
        const [model, mode] = system.split(" ");
        return search(collection, { query: query.value, model, mode, limit: LIMIT }, signal);
      }));
      columns.replaceChildren(column(left, a, b, false), column(right, b, a, true));
    } catch (error) {
      if (error.name !== "AbortError") columns.replaceChildren(problemElement(error));
    }
  }

  view.append(element("h2", "", "Over judged queries"), element("p", "quiet",
    "Every query is ranked by each system; scores come with 95 % intervals, seen and unseen documents apart."));
  view.append(judgementsForm("Evaluate", async (given, result) => {
    const task = await evaluate(collection, given);
    await outcome(result, task.id, signal, evaluationElement);
  }));
  if (query.value.trim()) await run();
}

// Each measure of each system, its interval, and its difference to the baseline.
function evaluationElement({ result: { systems, baseline, lines, left_out: without } }) {
  const rows = lines.map(({ group, queries, measure, cells }) => [`${group} (${queries})`, measure,
    ...systems.map((name) => cellText(cells[name]))]);
  return element("div", "", table(["queries", "measure", ...systems], rows,
    `Means; below, the difference to ${baseline} with its 95 % interval`),
  without ? element("p", "quiet", `${without} judged queries without a relevant document are left out.`) : "");
}

function cellText({ mean, difference }) {
  const text = element("span", "", mean.toFixed(4));
  if (!difference) return text;
  const sign = difference.mean >= 0 ? "+" : "";
  text.append(element("br"), element("span", "quiet",
    `${sign}${difference.mean.toFixed(4)} (${difference.low.toFixed(4)} to ${difference.high.toFixed(4)})`));
  return text;
}

// A list of hits with what the other list makes of each.
function column(name, answer, other, arrows) {
  const ranks = new Map(other.hits.map((hit) => [hit.id, hit.rank]));
  const list = element("ol", "hits");
  for (const hit of answer.hits) {
    const item = element("li", "hit", element("h3", "", hit.title || hit.id), attention(hit));
    const before = ranks.get(hit.id);
    const moved = before === undefined ? "only here" : before === hit.rank ? "same place"
      : arrows ? `${before > hit.rank ? "▲" : "▼"} from ${before}` : `is ${before} on the right`;
    item.append(element("p", before === hit.rank ? "parts" : "parts moved", moved));
    list.append(item);
  }
  return element("section", "", element("h2", "", name.selectedOptions[0].textContent),
    element("p", "quiet", attentionInWords(answer)), list);
}

function submit(text) {
  return element("button", "main", text);
}
