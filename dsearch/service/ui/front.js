// Front matter of Markdown: YAML between lines of ---, TOML between lines of +++. No DOM here.

const BLOCK = /^(---|\+\+\+)[ \t]*\r?\n([\s\S]*?\n)??\1[ \t]*(?:\r?\n|$)/;
const ITEM = /\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,]*)\s*(?:,|$)/g; // of a list in a line; a comma in quotes parts nothing
const LARGEST = 64 * 1024; // characters

// {fields, text}: plain values and lists of them; what is nested deeper is left out. A text without is all text.
export function frontMatter(whole) {
  const block = whole.slice(0, LARGEST).match(BLOCK);
  if (!block) return { fields: {}, text: whole };
  const fields = {}, sign = block[1] === "---" ? ":" : "=";
  let list = null; // the field whose items follow, a line each
  let long = null; // the field whose text follows, indented
  for (const line of (block[2] ?? "").split(/\r?\n/)) {
    if (long && /^\s+\S/.test(line)) {
      fields[long.name] = [fields[long.name], line.trim()].filter(Boolean).join(long.between);
      continue;
    }
    const item = line.match(/^\s*-\s+(.+)$/);
    if (item && list) {
      (fields[list] ??= []).push(valueOf(item[1]));
      continue;
    }
    if (line.startsWith("[")) break; // a table of TOML: everything below is nested
    const [, name, given] = line.match(sign === ":" ? /^([\w-]+):(?:\s+(.*))?$/ : /^([\w-]+)\s*=\s*(.+)$/) ?? [];
    if (name) list = long = null;
    const folded = sign === ":" && given?.match(/^([|>])[-+\d]*\s*(?:#.*)?$/);
    if (folded) long = { name, between: folded[1] === "|" ? "\n" : " " };
    else if (name && given?.trim()) fields[name] = valueOf(given);
    else if (name) list = name;
  }
  if (Object.keys(fields).length === 0 && block[2]?.trim()) return { fields, text: whole }; // prose between two rules
  return { fields, text: whole.slice(block[0].length) };
}

function valueOf(given) {
  const text = given.trim(), quoted = text.match(/^"((?:[^"\\]|\\.)*)"(?:\s+#.*)?$|^'([^']*)'(?:\s+#.*)?$/);
  if (quoted) return (quoted[1]?.replace(/\\(.)/g, "$1")) ?? quoted[2];
  const bare = text.replace(/\s+#.*$/, "");
  const several = bare.match(/^\[(.*)\]$/);
  if (several) return [...several[1].matchAll(ITEM)].map(([, one]) => one).filter((one) => one.trim()).map(valueOf);
  if (/^(true|false)$/i.test(bare)) return bare.toLowerCase() === "true";
  if (/^[-+]?\d+(\.\d+)?$/.test(bare) && Math.abs(bare) <= Number.MAX_SAFE_INTEGER) return Number(bare);
  return bare;
}
