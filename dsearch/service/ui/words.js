// Numbers as words. No DOM here.

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

export function percent(share) {
  if (share >= 0.9995) return "100 %";
  if (share < 0.001) return share > 0 ? "< 0.1 %" : "0 %";
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

const VERDICTS = {
  likely: "The first hit is likely to be right.",
  possible: "The first hit may be right.",
  unlikely: "The first hit is unlikely to be right.",
  "nothing fits": "Nothing here fits this query well.",
};

// Whether an estimate speaks of single hits: without judgements it only tells where nothing fits.
export function judgesHits(confidence) {
  return confidence?.fitted_on === "judgements";
}

// Whether the first hit is right; "" where nobody can tell. No share of attention takes part.
export function confidenceInWords({ hits, confidence }) {
  if (!confidence || hits.length === 0) return "";
  const { verdict, probability } = confidence;
  if (verdict === "nothing fits") return VERDICTS[verdict];
  if (!judgesHits(confidence)) return "";
  if (probability === null) return VERDICTS[verdict];
  return `The first hit is right with a probability of ${percent(probability)}.`;
}

export function evidenceInWords({ confidence }) {
  if (!confidence) return "";
  if (judgesHits(confidence)) return `Estimated on ${count(confidence.queries, "judged query", "judged queries")}.`;
  return "Estimated on queries made of the documents' own words, not on judgements.";
}

// Documents that no search finds yet, and the command that goes on with them; "" without any.
export function waitingInWords({ waiting }) {
  if (!waiting) return "";
  const { documents, hint } = waiting, one = documents === 1;
  return `${count(documents, "document")} cannot be found yet: indexing was interrupted before ${one ? "it was" : "they were"} ` +
    `encoded. To go on, in a terminal: \`${["dsearch", hint.name, ...hint.arguments].join(" ")}\``;
}

// e^entropy: the number of documents over which equal weights have that entropy.
export function attentionInWords({ hits, attention, waiting }) {
  if (attention.candidates === 0) {
    return `Nothing found.${waiting ? "" : " Leave out a filter, quotes or signs, or try other words."}`;
  }
  const spread = Math.exp(attention.entropy);
  const over = attention.candidates === 1 || spread < 1.5 ? "one document has most of it"
    : `it is spread over about ${Math.round(spread)} documents`;
  const shown = hits.reduce((sum, hit) => sum + hit.weight, 0);
  const scored = `${count(attention.candidates, "document")} ${attention.candidates === 1 ? "was" : "were"} scored`;
  const rest = attention.covered_mass === null || attention.covered_mass >= 0.9995 ? ""
    : `; others have ${percent(1 - attention.covered_mass)} of the collection's attention`;
  return `${count(hits.length, "hit")} with ${percent(shown)} of the attention; ${over}. ${scored}${rest}.`;
}

// The parts of a score, where one head sums them.
export function partsInWords({ score, explain }) {
  const number = score.toFixed(3);
  if (!explain || explain.dense.length !== 1) return `score ${number}`;
  const [meaning] = explain.dense, [words] = explain.keyword;
  const parts = [];
  if (meaning !== 0) parts.push(`meaning ${meaning.toFixed(3)}`);
  if (words !== 0) parts.push(`words ${words.toFixed(3)}`);
  if (explain.memory) parts.push(`past questions ${explain.memory.toFixed(3)}`);
  return parts.length > 1 ? `score ${number} = ${parts.join(" + ")}` : `score ${number}`;
}

// The judged queries like this one that raised a hit, in one sentence; "" without any.
export function pastInWords({ explain: { past_queries: past } }) {
  const named = (past ?? []).map(({ query, part }) =>
    `${query === null ? "a question not kept" : `“${query}”`} (${part.toFixed(3)})`);
  return named.length > 0 ? `Judged before, for ${named.join(", ")}.` : "";
}

// The stretch of a text to show: around the first word of the query that stands in it.
export function snippet(text, query, length) {
  if (text.length <= length) return text;
  const first = text.search(pattern(query));
  const start = first > length * 0.7 ? Math.max(0, text.lastIndexOf(" ", first - length / 4)) : 0;
  const end = text.lastIndexOf(" ", start + length);
  const cut = text.slice(start, end > start ? end : start + length).trim();
  return `${start > 0 ? "… " : ""}${cut}${start + length < text.length ? " …" : ""}`;
}

// A text in pieces, those that are words of the query marked.
export function pieces(text, query) {
  return text.split(pattern(query)).map((piece, i) => ({ text: piece, marked: i % 2 === 1 }));
}

// The words of a hit to mark: those that the server marked, and those of the query that count; "the" does not.
export function countedWords({ highlights, explain }, query) {
  if (!highlights || !explain) return query;
  const stems = Object.keys(explain.terms ?? {}).map((stem) => stem.slice(0, 4));
  const counted = wordsOf(query).filter((word) => stems.some((stem) => word.startsWith(stem)));
  const spans = highlights.filter((one) => one.by !== "meaning").flatMap(({ text, spans: places, start: first }) =>
    places.map(([start, end]) => [...text].slice(start - first, end - first).join("")));
  return [...counted, ...spans].join(" ");
}

function wordsOf(text) {
  return text.toLowerCase().match(/[\p{L}\p{N}_]{3,}/gu) ?? [];
}

function pattern(query) {
  const words = [...new Set(wordsOf(query))].slice(0, 32);
  if (words.length === 0) return /(?!)/;
  return new RegExp(`(?<![\\p{L}\\p{N}_])(${words.join("|")})(?![\\p{L}\\p{N}_])`, "giu");
}

// What is left to gain before anything is trained; the server's doubts come in words already.
export function headroomInWords({ queries, recall_at_10: shallow, recall_at_100: deep, answered_first: first, doubts }) {
  const room = `Headroom: of ${count(queries, "query", "queries")}, ${percent(first)} are answered ` +
    `by the first hit; of what is relevant, ${percent(shallow)} is among the first 10 hits and ${percent(deep)} ` +
    "among the first 100.";
  return doubts?.length ? `${room} Training is unlikely to help: ${doubts.join("; ")}.` : room;
}
