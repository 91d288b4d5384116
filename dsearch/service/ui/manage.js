// What can be done with whole collections: make one, name it again, take it away, take it along.

import { aliases, dropCollection, keepKey, key, list, removeAlias, setAlias } from "./api.js";
import { button, element, input, problemElement } from "./dom.js";
import { newCollection } from "./upload.js";
import { count } from "./words.js";

const PAGE = 200;

export async function collectionControls(collection) {
  const fresh = element("details", "why", element("summary", "", "A new collection"));
  fresh.addEventListener("toggle", () => {
    if (fresh.open && fresh.childElementCount === 1) fresh.append(newCollection());
  });
  return element("div", "", await aliasSection(collection), exportSection(collection), backupSection(collection),
    keySection(), removal(collection), fresh);
}

async function aliasSection(collection) {
  const name = input("text", { maxlength: 64, placeholder: "another-name", "aria-label": "Alias" });
  const listed = element("ul", "plain");
  const section = element("section", "", element("h2", "", "Other names"), listed);
  const draw = async () => {
    const own = Object.entries(await aliases()).filter(([, target]) => target === collection).map(([alias]) => alias);
    listed.replaceChildren(...own.map((alias) => {
      const remove = button("Remove", () => guarded(section, async () => {
        await removeAlias(alias);
        await draw();
      }), "link");
      remove.setAttribute("aria-label", `Remove ${alias}`);
      return element("li", "", alias, " ", remove);
    }));
  };
  const add = button("Add this name", () => guarded(section, async () => {
    await setAlias(name.value.trim(), collection);
    name.value = "";
    await draw();
  }), "link");
  section.append(element("div", "row", name, add));
  await draw();
  return section;
}

function exportSection(collection) {
  const said = element("span", "quiet");
  said.setAttribute("role", "status");
  const section = element("section", "", element("h2", "", "Take it along"));
  const start = button("Download as JSON lines", () => guarded(section, async () => {
    const parts = [];
    let cursor = null, documents = 0;
    do {
      const page = await list(collection, { limit: PAGE, cursor });
      parts.push(page.documents.map((one) => `${JSON.stringify(one)}\n`).join(""));
      documents += page.documents.length;
      said.textContent = `${count(documents, "document")} read …`;
      cursor = page.next;
    } while (cursor);
    const link = element("a");
    link.href = URL.createObjectURL(new Blob(parts, { type: "application/x-ndjson" }));
    link.download = `${collection}.jsonl`;
    link.click();
    URL.revokeObjectURL(link.href);
    said.textContent = `${count(documents, "document")} downloaded.`;
  }, start), "link");
  section.append(element("p", "", start, " ", said), element("p", "quiet", "Texts and metadata, which any collection reads."));
  return section;
}

// No request may name a folder of the server's machine, nor make a key: who came by one could make others.
function backupSection(collection) {
  return element("section", "", element("h2", "", "Back it up"), element("p", "quiet",
    "A backup has the models, the feedback and the embeddings too. It is written into a folder of the server’s " +
    "machine, which no request may name, so it is made there, in a terminal; searches and writes go on meanwhile:"),
  commands([
    [`dsearch backup FOLDER -c ${collection}`, "copies it, every digest checked"],
    ["dsearch restore FOLDER", "brings it back, while no server runs on that home"],
  ]));
}

function keySection() {
  const present = element("p", "", key() ? "This tab sends a key with every request. " : "This tab sends no key.");
  if (key()) {
    present.append(button("Forget it", () => {
      keepKey("");
      location.reload();
    }, "link"));
  }
  return element("section", "", element("h2", "", "Keys"), present, element("p", "quiet",
    "Keys are made in a terminal on the server’s machine too, so that nobody who came by a key can make others with " +
    "it. From the first one on, every request needs one; the server heeds changes at once:"),
  commands([
    ["dsearch keys create --name NAME --scope read", "shows a new key, once; scopes are read, write and admin"],
    ["dsearch keys list", "names them, with scope and date"],
    ["dsearch keys revoke ID", "ends one"],
  ]));
}

function commands(rows) {
  return element("dl", "commands", ...rows.flatMap(([command, does]) =>
    [element("dt", "", element("code", "", command)), element("dd", "quiet", does)]));
}

// Its name has to be typed: nothing brings it back but a backup.
function removal(collection) {
  const name = input("text", { maxlength: 64, placeholder: collection, "aria-label": "Name of the collection to delete" });
  const section = element("section", "", element("h2", "", "Delete it"), element("p", "quiet",
    "With its documents, models and feedback; only a backup brings it back. Type its name:"));
  const remove = button("Delete the collection", () => guarded(section, async () => {
    await dropCollection(collection);
    history.replaceState(null, "", "/");
    location.reload();
  }), "link");
  remove.disabled = true;
  name.addEventListener("input", () => { remove.disabled = name.value !== collection; });
  section.append(element("div", "row", name, remove));
  return section;
}

// `pressed` is a button that waits for the end of what it began.
async function guarded(section, act, pressed = {}) {
  section.querySelector(".problem")?.remove();
  pressed.disabled = true;
  try {
    await act();
  } catch (error) {
    section.append(problemElement(error));
  } finally {
    pressed.disabled = false;
  }
}
