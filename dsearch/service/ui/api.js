// Requests to the API. A problem document becomes an Error whose message is its `detail`.

const KEPT = 50; // requests that the console shows
const KEY = "dsearch-key";
const TRIES = 4; // of a request that a busy server ends before it does anything
const AGAIN = ["overloaded", "deadline_passed"];

export const sent = []; // the last requests, newest first
export const told = new EventTarget(); // "sent" after each request

const of = (collection) => `/v1/collections/${encodeURIComponent(collection)}`;

export const collections = async () => (await ask("/v1/collections")).collections;
export const describe = (collection) => ask(of(collection));
export const statistics = (collection) => ask(`${of(collection)}/stats`);
export const search = (collection, request, signal) => post(`${of(collection)}/search`, request, signal);
export const similar = (collection, request, signal) => post(`${of(collection)}/similar`, request, signal);
export const attend = (collection, request, signal) => post(`${of(collection)}/attend`, request, signal);
export const fieldsOf = async (request) => (await ask("/openapi.json")).components.schemas[request].properties;
export const predict = (collection, request, signal) => post(`${of(collection)}/predict`, request, signal);
export const facets = (collection, request, signal) => post(`${of(collection)}/facets`, request, signal);
export const createCollection = (collection) => send("PUT", of(collection), {});
export const dropCollection = (collection) => send("DELETE", of(collection));
export const aliases = async () => (await ask("/v1/aliases")).aliases;
export const setAlias = (alias, collection) => send("PUT", `/v1/aliases/${encodeURIComponent(alias)}`, { collection });
export const removeAlias = (alias) => send("DELETE", `/v1/aliases/${encodeURIComponent(alias)}`);
export const judgements = (collection, client) =>
  ask(`${of(collection)}/judgements?${new URLSearchParams({ client_id: client })}`);
export const toJudge = (collection, client, limit, signal) =>
  ask(`${of(collection)}/judgements/next?${new URLSearchParams({ client_id: client, limit })}`, { signal });
export const feedback = (collection, events) => post(`${of(collection)}/feedback`, events);
export const models = (collection) => ask(`${of(collection)}/models`);
export const promote = (collection, version) => post(`${of(collection)}/models/${version}/promote`);
export const rollback = (collection) => post(`${of(collection)}/models/rollback`);
export const train = (collection, request) => post(`${of(collection)}/train`, request);
export const evaluate = (collection, request) => post(`${of(collection)}/evaluate`, request);
export const refresh = (collection) => post(`${of(collection)}/refresh`, {});
export const tasks = async () => (await ask("/v1/tasks")).tasks;
export const task = (id) => ask(`/v1/tasks/${id}`);
export const cancel = (id) => ask(`/v1/tasks/${id}`, { method: "DELETE" });
export const removeDocument = (collection, id) =>
  ask(`${of(collection)}/documents/${encodeURIComponent(id)}`, { method: "DELETE" });

// Files by their names, [[name, file], …], as a form; the task that reads them.
export function sendFiles(collection, files) {
  const form = new FormData();
  for (const [name, file] of files) form.append("file", file, name);
  return ask(`${of(collection)}/files`, { method: "POST", body: form });
}

export function list(collection, { limit, cursor }) {
  const asked = new URLSearchParams({ limit });
  if (cursor) asked.set("cursor", cursor);
  return ask(`${of(collection)}/documents?${asked}`);
}

// Server-sent events of a task, each told to `hear`, until the task has ended or `signal` says so. By fetch,
// not EventSource, which cannot send a key.
export async function follow(id, hear, signal) {
  const response = await fetch(`/v1/tasks/${id}/events`, { headers: withKey({}), signal });
  if (!response.ok) throw await asError(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value.replaceAll("\r\n", "\n");
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const lines = event.split("\n");
      const name = lines.find((line) => line.startsWith("event:"))?.slice(6).trim() ?? "message";
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data) hear(name, JSON.parse(data));
    }
  }
}

// ---- the key, for as long as the tab is open

export const key = () => sessionStorage.getItem(KEY) ?? "";

export function keepKey(given) {
  if (given) sessionStorage.setItem(KEY, given);
  else sessionStorage.removeItem(KEY);
}

function withKey(headers) {
  return key() ? { ...headers, Authorization: `Bearer ${key()}` } : headers;
}

// ---- within

const post = (url, content, signal) => send("POST", url, content, signal);

function send(method, url, content, signal) {
  if (content === undefined) return ask(url, { method, signal });
  const headers = { "Content-Type": "application/json" };
  return ask(url, { method, headers, body: JSON.stringify(content), signal });
}

async function ask(url, options = {}, tries = TRIES) {
  const started = performance.now();
  let response;
  try {
    response = await fetch(url, { ...options, headers: withKey(options.headers ?? {}) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw stopped();
  }
  note(url, options, response.status, performance.now() - started);
  if (response.ok) return isJson(response) ? response.json() : {};
  const error = await asError(response);
  if (!AGAIN.includes(error.code) || tries <= 1) throw error;
  await pause(1000 * (Number(response.headers.get("Retry-After")) || 1), options.signal);
  return ask(url, options, tries - 1);
}

export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

// What a request that reached nobody means to a person.
export const stopped = () => new Error("The server does not answer. Is `dsearch serve` still running?");

async function asError(response) {
  const content = isJson(response) ? await response.json() : {};
  const error = new Error(content.detail ?? `The server answered ${response.status}.`);
  error.code = content.code;
  error.status = response.status;
  if (response.status === 401) told.dispatchEvent(new Event("locked"));
  return error;
}

function isJson(response) {
  return /[/+]json\b/.test(response.headers.get("Content-Type") ?? "");
}

function note(url, { method = "GET", body = "" }, status, took) {
  const files = body instanceof FormData ? body.getAll("file").map((file) => file.name) : [];
  sent.unshift({ method, url, body: files.length ? "" : body, files, status, took });
  sent.length = Math.min(sent.length, KEPT);
  told.dispatchEvent(new Event("sent"));
}
