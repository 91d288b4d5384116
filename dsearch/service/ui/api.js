// Requests to the API. A problem document becomes an Error whose message is its `detail`.

const base = "/v1/collections";

export async function collections() {
  return (await ask(base)).collections;
}

export function describe(collection) {
  return ask(`${base}/${encodeURIComponent(collection)}`);
}

export function search(collection, request, signal) {
  return ask(`${base}/${encodeURIComponent(collection)}/search`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `dsearch serve` still running?");
  }
  const isJson = /[/+]json\b/.test(response.headers.get("Content-Type") ?? "");
  const content = isJson ? await response.json() : {};
  if (!response.ok) throw new Error(content.detail ?? `The server answered ${response.status}.`);
  return content;
}
