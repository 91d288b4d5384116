// The state of the page is its address: #v=train&c=papers&q=…

export function state() {
  return new URLSearchParams(location.hash.slice(1));
}

// Change parts of the address without a new entry in the history; null takes one out.
export function remember(changes) {
  const present = state();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") present.delete(name);
    else present.set(name, value);
  }
  history.replaceState(null, "", `#${present}`);
}
