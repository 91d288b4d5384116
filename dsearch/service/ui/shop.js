// A shop small enough to see through. No DOM here.

export const SHOP = {
  features: ["sweet", "fresh", "filling"],
  query: [0.2, 0.9, 0.3],
  items: [
    { name: "lettuce", key: [0.1, 1, 0.1], price: 1.2 },
    { name: "tomatoes", key: [0.4, 0.9, 0.2], price: 2.5 },
    { name: "apples", key: [0.8, 0.8, 0.3], price: 2.0 },
    { name: "bread", key: [0.2, 0.4, 0.9], price: 3.1 },
    { name: "rice", key: [0, 0, 1], price: 1.8 },
    { name: "chocolate", key: [1, 0, 0.5], price: 2.4 },
    { name: "honey", key: [1, 0.2, 0.2], price: 4.9 },
  ],
};

// Weights that sum to 1: of the nearest alone, of all alike, or soft: the softmax of −distance² / (2 · width²),
// which is a Gaussian kernel of the distance.
export function kernelWeights(query, pooling, width) {
  const squares = SHOP.items.map(({ key }) => key.reduce((sum, value, at) => sum + (value - query[at]) ** 2, 0));
  if (pooling === "uniform") return squares.map(() => 1 / squares.length);
  const least = Math.min(...squares);
  if (pooling === "hard") return squares.map((square) => (square === least ? 1 : 0));
  const raw = squares.map((square) => Math.exp((least - square) / (2 * width * width)));
  const sum = raw.reduce((total, one) => total + one, 0);
  return raw.map((one) => one / sum);
}

export function pooled(weights) {
  const mean = weights.reduce((sum, weight, at) => sum + weight * SHOP.items[at].price, 0);
  const variance = weights.reduce((sum, weight, at) => sum + weight * (SHOP.items[at].price - mean) ** 2, 0);
  return { mean, spread: Math.sqrt(variance) };
}
