// A heat map, apart from other pictures: hits have one, so that it is loaded first.

import { element, scrolling } from "./dom.js";

// Rows × columns of weights from 0 to 1, darker for more.
export function heatmap(rows, columns, weights, label) {
  const most = Math.max(...weights.flat(), 1e-9);
  const made = element("table", "heat");
  made.append(element("caption", "", label));
  made.append(element("thead", "", element("tr", "", element("td"), ...columns.map(headCell))));
  made.append(element("tbody", "", ...rows.map((row, at) => {
    const head = element("th", "", row);
    head.scope = "row";
    return element("tr", "", head, ...weights[at].map((weight) => {
      const cell = element("td", "", weight >= 0.005 ? weight.toFixed(2).replace(/^0/, "") : "·");
      cell.style.setProperty("--shade", String(weight / most));
      return cell;
    }));
  })));
  return scrolling(made);
}

function headCell(text) {
  const cell = element("th", "", text);
  cell.scope = "col";
  return cell;
}
