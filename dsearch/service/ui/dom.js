// Elements. Whatever comes from a document or a server is set as text, never as markup.

export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function button(text, act, className = "") {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

// A control with its label; `change` is told of every change.
export function field(label, control, change) {
  const shown = element("label", "field", element("span", "", label), control);
  if (change) control.addEventListener("change", change);
  return shown;
}

export function select(options, chosen) {
  const made = element("select");
  for (const option of options) {
    const [value, text] = Array.isArray(option) ? option : [option, option];
    const item = element("option", "", text);
    item.value = value;
    made.append(item);
  }
  if (chosen !== undefined) made.value = chosen;
  return made;
}

export function input(type, attributes = {}) {
  const made = element("input");
  made.type = type;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function table(heads, rows, caption = "") {
  const made = element("table", "data");
  if (caption) made.append(element("caption", "", caption));
  const head = element("tr");
  for (const text of heads) {
    const cell = element(text ? "th" : "td", "", text);
    if (text) cell.scope = "col";
    head.append(cell);
  }
  made.append(element("thead", "", head), element("tbody", "", ...rows.map((row) =>
    element("tr", "", ...row.map((cell) => element("td", "", cell instanceof Node ? cell : String(cell)))))));
  return scrolling(made);
}

// Wider than its place: it scrolls within, by keyboard too.
export function scrolling(content) {
  const made = element("div", "scroll", content);
  made.tabIndex = 0;
  return made;
}

// A problem's words; what stands between backticks is typed.
export function worded(text) {
  return text.split("`").map((part, number) => (number % 2 ? element("code", "", part) : part));
}

export function problemElement(error) {
  const made = element("p", "problem", ...worded(error.message));
  made.setAttribute("role", "alert");
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
