// What can be done with whole collections: make one, name it again, take it away, take it along.

import { aliases, dropCollection, list, removeAlias, setAlias } from "./api.js";
import { button, element, input, problemElement } from "./dom.js";
import { newCollection } from "./upload.js";
import { count } from "./words.js";

const PAGE = 200;

export async function collectionControls(collection) {
  const fresh = element("details", "why", element("summary", "", "A new collection"));
  fresh.addEventListener("toggle", () => {
    if (fresh.open && fresh.childElementCount === 1) fresh.append(newCollection());
  });
  return element("div", "", await aliasSection(collection), exportSection(collection), removal(collection), fresh);
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
    start.disabled = true;
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
    start.disabled = false;
  }), "link");
  section.append(element("p", "", start, " ", said), element("p", "quiet",
    "With models, feedback and embeddings, where the home is: ", element("code", "", `dsearch backup FOLDER -c ${collection}`),
    ". Keys are made there too: ", element("code", "", "dsearch keys create --name NAME --scope read"), "."));
  return section;
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

async function guarded(section, act) {
  section.querySelector(".problem")?.remove();
  try {
    await act();
  } catch (error) {
    section.append(problemElement(error));
  }
}
