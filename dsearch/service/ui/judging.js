// What can be done with a hit. Opinions are kept once somebody agrees to it.

import { feedback } from "./api.js";
import { button, element } from "./dom.js";

const CONSENT = "dsearch-consent";
const CLIENT = "dsearch-client";

export const agreed = () => localStorage.getItem(CONSENT) === "yes";
export const withdraw = () => localStorage.setItem(CONSENT, "no");

const KEYS = ["a", "f", "n"]; // the answer, fits, does not fit

// On a hit that has the focus.
export function judgeByKey(pressed) {
  const at = KEYS.indexOf(pressed.key);
  if (at < 0 || pressed.ctrlKey || pressed.metaKey || pressed.altKey || !pressed.target.matches?.(".hit")) return;
  pressed.preventDefault();
  pressed.target.querySelectorAll(".opinion")[at]?.click();
}

export function acts(collection, hit, answer, alike) {
  const said = element("span", "said");
  said.setAttribute("role", "status");
  const buttons = [];
  const judge = (action, words, own) => async () => {
    const send = async () => {
      try {
        await feedback(collection, [event(action, hit, answer)]);
        said.textContent = words;
        for (const one of buttons) one.setAttribute("aria-pressed", String(one === own()));
      } catch (error) {
        said.textContent = error.message;
      }
    };
    if (agreed()) await send();
    else askFirst(said, send);
  };
  const opinion = (text, action, words) => {
    const made = button(text, judge(action, words, () => made), "opinion");
    made.title = `Key ${KEYS[buttons.length]} on the hit`;
    buttons.push(made);
    return made;
  };
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText([hit.title, hit.text].filter(Boolean).join("\n"));
      said.textContent = "Copied";
    } catch {
      said.textContent = "The browser does not allow it; select the text";
    }
  });
  return [opinion("This is the answer", "answer", "Kept: the answer"),
    opinion("This fits", "thumbs_up", "Kept: it fits"), opinion("This does not fit", "thumbs_down", "Kept: it does not fit"),
    ...(alike ? [button("More like this", alike)] : []), copy, said];
}

// On the spot, once: where opinions go, and what for.
function askFirst(said, send) {
  const yes = button("Keep them", async () => {
    localStorage.setItem(CONSENT, "yes");
    await send();
  });
  const no = button("No", () => { said.textContent = "Not kept."; });
  said.replaceChildren("Keep your judgements on this server, with the query, so that search learns from them? ", yes, " ", no);
  yes.focus();
}

function event(action, hit, answer) {
  return {
    action_name: action,
    object_id: hit.id,
    query_id: answer.query_id,
    client_id: clientId(),
    event_id: crypto.getRandomValues(new Uint32Array(4)).join("-"),
    timestamp: new Date().toISOString(),
    event_attributes: { position: { ordinal: hit.rank } },
  };
}

export function clientId() {
  let id = localStorage.getItem(CLIENT);
  if (!id) {
    id = `page-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
    localStorage.setItem(CLIENT, id);
  }
  return id;
}
