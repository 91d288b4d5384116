// Records as documents, read as `dsearch index` reads them: JSON lines, and the rows of tables. No DOM here.

const TEXTS = ["text", "contents", "body"];
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/; // as JSON writes one: 007 is a name
const BOOLEANS = { true: true, false: false };

// A record without an id has that of its line, which another file does not take from it.
export function ofLines(path, text) {
  return text.split("\n").map((line, at) => [line, at + 1]).filter(([line]) => line.trim()).map(([line, number]) => {
    let record = null;
    try {
      record = JSON.parse(line);
    } catch {
      throw new Error(`${path}, line ${number}: not JSON.`);
    }
    if (!isObject(record)) throw new Error(`${path}, line ${number}: not an object, such as {"id": "a", "text": "…"}.`);
    const { _id, id, title, value, metadata, ...rest } = record;
    const { words, fields } = withoutText(rest), named = _id ?? id;
    return {
      id: blank(named) ? `${path}#${number}` : String(named), title: title ?? "", text: words ?? "",
      metadata: { ...fields, ...(isObject(metadata) ? metadata : blank(metadata) ? {} : { metadata }) }, ...(blank(value) ? {} : { value }),
    };
  });
}

// A row is a document: id, title and text are its columns of these names, else the text is all of it. The columns
// are parted by what is most frequent in the first line.
export function ofTable(path, text) {
  const [first] = text.split("\n", 1);
  const count = (one) => first.split(one).length;
  const separator = [",", ";", "\t"].reduce((best, one) => (count(one) > count(best) ? one : best));
  const [head, ...rows] = cellsOf(text, separator);
  if (!head) return [];
  const names = head.map((name) => name.trim());
  const kinds = names.map((_, at) => kindOf(rows.map((row) => (row[at] ?? "").trim()).filter(Boolean)));
  return rows.map((row, number) => {
    const named = Object.fromEntries(names.map((name, at) => [name, row[at] ?? ""]));
    const { _id, id, title, ...rest } = named;
    const { words, fields } = withoutText(rest), own = _id ?? id;
    const typed = names.filter((name) => name in fields)
      .map((name) => [name, valueOf(fields[name], kinds[names.indexOf(name)])]).filter(([, value]) => value !== undefined);
    return {
      id: `${path}#${blank(own) ? number + 1 : own}`, title: title ?? "", text: words ?? row.join(" "),
      metadata: { ...Object.fromEntries(typed), path },
    };
  });
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const blank = (value) => value === null || value === undefined || String(value).trim() === "";

function withoutText(record) {
  const name = TEXTS.find((one) => one in record);
  return { words: record[name], fields: Object.fromEntries(Object.entries(record).filter(([one]) => one !== name)) };
}

// Of a column, by those of its cells that are not empty.
function kindOf(cells) {
  if (cells.length === 0) return "text";
  if (cells.every((cell) => cell.toLowerCase() in BOOLEANS)) return "boolean";
  return cells.every(isNumber) ? "number" : "text";
}

// Digits beyond what a number holds are those of an id.
function isNumber(cell) {
  return NUMBER.test(cell) && Number.isFinite(Number(cell)) && (!/^-?\d+$/.test(cell) || Number.isSafeInteger(Number(cell)));
}

function valueOf(cell, kind) {
  if (kind === "text") return cell;
  if (!cell.trim()) return undefined; // there is none
  return kind === "number" ? Number(cell) : BOOLEANS[cell.trim().toLowerCase()];
}

// Quoted cells may have separators, line ends and doubled quotes in them.
function cellsOf(text, separator) {
  const rows = [];
  let row = [], cell = "", quoted = false;
  const endRow = () => {
    row.push(cell);
    if (row.some((one) => one.trim())) rows.push(row);
    [row, cell] = [[], ""];
  };
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[at + 1] === '"') cell += text[++at];
      else quoted = false;
    } else if (letter === '"' && !cell) quoted = true;
    else if (letter === separator) [row, cell] = [[...row, cell], ""];
    else if (letter === "\n") endRow();
    else if (letter !== "\r") cell += letter;
  }
  endRow();
  return rows;
}
