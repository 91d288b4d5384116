// What this page asked of the server, as you would ask it yourself.

import { key, sent, told } from "./api.js";
import { button, element } from "./dom.js";

export function show(view, { signal }) {
  const list = element("div");
  view.append(element("h1", "", "Console"), element("p", "quiet",
    "The last requests of this page, newest first. Copy one and go on from there."), list);
  const draw = () => list.replaceChildren(...sent.map(entry));
  told.addEventListener("sent", draw, { signal });
  draw();
}

function entry(request) {
  const curl = asCurl(request), python = asPython(request);
  return element("details", "why",
    element("summary", "", `${request.method} ${request.url} · ${request.status} · ${request.took.toFixed(0)} ms`),
    element("h2", "", "curl"), code(curl), copier(curl),
    element("h2", "", "Python"), code(python), copier(python));
}

// Long lines scroll within, by keyboard too.
function code(text) {
  const made = element("pre", "", text);
  made.tabIndex = 0;
  return made;
}

function copier(text) {
  const made = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      made.textContent = "Copied";
    } catch {
      made.textContent = "The browser does not allow it; select the text";
    }
  }, "link");
  return made;
}

export function asCurl({ method, url, body, files = [] }) {
  const parts = [`curl -s ${method === "GET" ? "" : `-X ${method} `}${quoted(location.origin + url)}`];
  if (key()) parts.push('-H "Authorization: Bearer $DSEARCH_API_KEY"'); // the key itself stays out of what is copied
  if (body) parts.push("-H 'content-type: application/json'", `-d ${quoted(body)}`);
  parts.push(...files.map((name) => `-F ${quoted(`file=@"${name.replace(/["\\]/g, "\\$&")}"`)}`));
  return parts.join(" \\\n     ");
}

// As a shell reads it; an id may have an apostrophe, which addresses keep.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asPython({ method, url, body, files = [] }) {
  const lines = [...(key() ? ["import os", ""] : []), "import httpx2", ""];
  const given = [`"${method}"`, JSON.stringify(`${location.origin}${url}`)];
  if (key()) {
    lines.push("headers = {\"Authorization\": f\"Bearer {os.environ['DSEARCH_API_KEY']}\"}");
    given.push("headers=headers");
  }
  if (body) {
    lines.push(`content = ${asLiteral(JSON.parse(body))}`);
    given.push("json=content");
  }
  if (files.length) {
    lines.push(`files = [("file", (name, open(name, "rb"))) for name in ${asLiteral(files)}]`);
    given.push("files=files");
  }
  lines.push(`answer = httpx2.request(${given.join(", ")})`, "answer.raise_for_status()", "print(answer.json())");
  return lines.join("\n");
}

function asLiteral(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(asLiteral).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${asLiteral(one)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
