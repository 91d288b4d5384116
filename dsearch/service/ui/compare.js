// Two models or modes side by side: for one query, and over a set of judged queries.

import { remember, state } from "./address.js";
import { evaluate, models, search } from "./api.js";
import { element, field, input, problemElement, select, table } from "./dom.js";
import { attention } from "./hits.js";
import { judgementsForm, queriesOf } from "./judgements.js";
import { outcome } from "./jobs.js";
import { acts } from "./judging.js";
import { attentionInWords, confidenceInWords, count, snippet } from "./words.js";

const LIMIT = 10;
const SHOWN = 20; // wins, and losses, that are listed

export async function show(view, { collection, signal }) {
  const { live, models: all } = await models(collection);
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
  columns.tabIndex = -1; // where a click on a won or lost query leads to
  const form = element("form", "row", field("Left", left), field("Right", right),
    element("div", "row", query, element("button", "main", "Compare")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  view.append(element("h1", "", "Compare"), form, columns);

  let running = null; // what the latest answers are for: a late one replaces no newer one

  // Both answers to the query; `grades` of documents where it is a judged one.
  async function run(grades = {}) {
    remember({ a: left.value, b: right.value, q: query.value.trim() || null });
    if (!query.value.trim()) return;
    const mine = (running = {});
    columns.classList.add("busy"); // what stood there stays until it is replaced: nothing jumps
    try {
      const [a, b] = await Promise.all([left.value, right.value].map((system) =>
        search(collection, { query: query.value, ...systemOf(system), limit: LIMIT }, signal)));
      if (running !== mine) return;
      columns.replaceChildren(column(left, a, b, false, grades, collection), column(right, b, a, true, grades, collection));
    } catch (error) {
      if (running === mine && error.name !== "AbortError") columns.replaceChildren(problemElement(error));
    } finally {
      if (running === mine) columns.classList.remove("busy");
    }
  }

  if (query.value.trim()) await run(); // before what stands below it
  view.append(element("h2", "", "Over judged queries"), element("p", "quiet",
    "Every query is ranked by both; scores come with 95 % intervals. Of a BEIR folder with training and test " +
    "judgements the test ones are scored, seen and unseen documents apart."));
  view.append(judgementsForm("Evaluate", async (given, result) => {
    const compared = [left.value, right.value];
    if (left.value === right.value) throw new Error("Left and right are the same; choose two to compare.");
    const judgements = given.testing ?? given.judgements;
    const task = await evaluate(collection, {
      queries: queriesOf(given, judgements), judgements, systems: compared.map(systemOf),
      ...(given.training ? { training: given.training } : {}),
    });
    await outcome(result, task.id, signal, (done) => evaluationElement(done, async (row) => {
      [left.value, right.value] = compared;
      query.value = row.query;
      await run(judgements[row.id]);
      columns.scrollIntoView({ block: "start" });
      columns.focus({ preventScroll: true });
    }));
  }));
}

function systemOf(system) {
  const [model, mode] = system.split(" ");
  return { model, mode };
}

// Each measure of each system, its interval, its difference to the baseline; then query by query.
function evaluationElement({ result }, open) {
  const { systems, baseline, lines, left_out: without, comparison, better_leg: leg, warning } = result;
  const rows = lines.map(({ group, queries, measure, cells }) => [`${group} (${queries})`, measure,
    ...systems.map((name) => cellText(cells[name]))]);
  const shown = element("div", "", warning ? element("p", "warning", `Warning: ${warning}.`) : "", table(["queries", "measure", ...systems], rows,
    `Means; below, the difference to ${baseline} with its 95 % interval`),
  without ? element("p", "quiet", `Left out: ${count(without, "judged query", "judged queries")} without a relevant document.`) : "",
  leg ? element("p", "", leg.text) : "");
  if (comparison) shown.append(...comparisonElements(comparison, open));
  return shown;
}

function cellText({ mean, difference }) {
  const text = element("span", "", mean.toFixed(4));
  if (!difference) return text;
  text.append(element("br"), element("span", "quiet", `${signed(difference.mean)} `,
    element("span", "whole", `(${difference.low.toFixed(4)} to ${difference.high.toFixed(4)})`)));
  return text;
}

function comparisonElements({ first, second, measure, groups, wins, losses }, open) {
  const verdicts = groups.map(({ name, queries, wins: won, losses: lost, p_value: p }) => element("p", "",
    `${name}: ${second} wins ${won} and loses ${lost} of ${count(queries, "query", "queries")} against ${first}; ` +
    `${p <= 0.05 ? "significant" : "may be chance"} (p = ${p.toFixed(3)}).`));
  return [element("h3", "", "Wins and losses"), ...verdicts,
    ...[["Won", wins], ["Lost", losses]].filter(([, rows]) => rows.length > 0).map(([title, rows]) =>
      table(["query", first, second, "change"], rows.slice(0, SHOWN).map((row) => [
        opener(row, open), row.first.toFixed(3), row.second.toFixed(3), signed(row.second - row.first)]),
      `${title}, ${measure}: ${rows.length > SHOWN ? `the ${SHOWN} largest` : rows.length}`))];
}

// A link, so that it opens in a tab of its own too; here it keeps the list.
function opener(row, open) {
  const link = element("a", "", row.query);
  const there = state();
  there.set("q", row.query);
  link.href = `#${there}`;
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(row);
  });
  return link;
}

function signed(number) {
  return `${number >= 0 ? "+" : ""}${number.toFixed(4)}`;
}

// A list of hits with what the other list makes of each.
function column(name, answer, other, arrows, grades, collection) {
  const ranks = new Map(other.hits.map((hit) => [hit.id, hit.rank]));
  const list = element("ol", "hits");
  for (const hit of answer.hits) {
    const item = element("li", "hit", element("h3", "", hit.title || hit.id), attention(hit));
    item.tabIndex = 0;
    if (hit.text) item.append(element("p", "text", snippet(hit.text.replace(/\s+/g, " ").trim(), answer.query ?? "", 200)));
    const before = ranks.get(hit.id);
    const moved = before === undefined ? "only here" : before === hit.rank ? "same place"
      : arrows ? `${before > hit.rank ? "▲" : "▼"} from ${before}` : `is ${before} on the right`;
    item.append(element("p", before === hit.rank ? "parts" : "parts moved", moved));
    if (grades[hit.id] > 0) item.append(element("p", "parts judged", `judged relevant (${grades[hit.id]})`));
    item.append(element("p", "acts", ...acts(collection, hit, answer)));
    list.append(item);
  }
  if (answer.hits.length === 0) list.append(element("p", "quiet", "Nothing found."));
  return element("section", "", element("h2", "", name.selectedOptions[0].textContent),
    element("p", "quiet", [confidenceInWords(answer), attentionInWords(answer)].filter(Boolean).join(" ")), list);
}
