// Principal components by power iteration. No DOM here.

const ROUNDS = 60;

// The first two principal components of each row.
export function projected(rows) {
  if (rows.length === 0) return [];
  const mean = rows[0].map((_, at) => rows.reduce((sum, row) => sum + row[at], 0) / rows.length);
  const centred = rows.map((row) => row.map((value, at) => value - mean[at]));
  const first = component(centred, 1);
  const rest = centred.map((row) => without(row, first));
  const second = component(rest, 2);
  return centred.map((row) => [dot(row, first), dot(row, second)]);
}

function component(rows, seed) {
  // A start that is never orthogonal to everything, and the same each time.
  let direction = unit(rows[0].map((_, at) => Math.sin((at + 1) * seed * 12.9898)));
  for (let round = 0; round < ROUNDS; round++) {
    const next = new Array(direction.length).fill(0);
    for (const row of rows) {
      const share = dot(row, direction);
      for (let at = 0; at < next.length; at++) next[at] += share * row[at];
    }
    if (!next.some((value) => Math.abs(value) > 1e-12)) return direction;
    direction = unit(next);
  }
  return direction;
}

function without(row, direction) {
  const share = dot(row, direction);
  return row.map((value, at) => value - share * direction[at]);
}

function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}

function unit(vector) {
  const length = Math.sqrt(dot(vector, vector)) || 1;
  return vector.map((value) => value / length);
}
