// Pictures: planes as bits, ranks as slopes, latencies as a line. SVG paths, coloured by the stylesheet.
//
// A bit is a small bar above the middle line (+1) or below it (−1): a plane reads like the signal it is.
// Bars in the accent colour agree with the query's bit of the same plane and dimension, pale ones do not, so
// the eye sees the score: x·y = agreements − disagreements.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; text becomes text nodes, never markup. */
export function make(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "g", "polyline", "rect", "title"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Hex of a plane → its bits, dimension 0 first. */
export function bitsOf(hex) {
  const bits = [];
  for (const digit of hex) {
    const value = parseInt(digit, 16);
    bits.push((value >> 3) & 1, (value >> 2) & 1, (value >> 1) & 1, value & 1);
  }
  return bits;
}

/** How many of two bit lists are equal, place by place. */
export function agreement(a, b) {
  return a.reduce((sum, bit, d) => sum + (bit === b[d] ? 1 : 0), 0);
}

/** The planes of one code, one row a plane; `query` (a list of planes) decides the colours, or null for ink. */
export function planesPicture(planes, query, { cell = 4, height = 7, gap = 5, label }) {
  const n = planes[0].length;
  const perRow = Math.min(n, 128);
  const rows = Math.ceil(n / perRow);
  const plane = rows * (2 * height + 1) + (rows - 1) * 2;
  const full = planes.length * plane + (planes.length - 1) * gap;
  const same = [];
  const other = [];
  planes.forEach((bits, t) => bits.forEach((bit, d) => {
    const x = (d % perRow) * cell;
    const middle = t * (plane + gap) + Math.floor(d / perRow) * (2 * height + 3) + height;
    const bar = `M${x} ${bit ? middle - height : middle + 1}h${cell - 1}v${height}h${1 - cell}z`;
    const agrees = !query || (query[t] ? query[t][d] === bit : true);
    (agrees ? same : other).push(bar);
  }));
  return make("svg", {
    class: query ? "bits" : "bits ink", viewBox: `0 0 ${perRow * cell - 1} ${full}`, role: "img", "aria-label": label,
    preserveAspectRatio: "xMinYMid meet", width: perRow * cell - 1, height: full,
  }, make("path", { class: "no", d: other.join("") }), make("path", { class: "yes", d: same.join("") }));
}

// Ranks are drawn on a log scale: moving from 40 to 4 matters as much as from 400 to 40.
const depth = (rank, last) => Math.log(rank) / Math.log(Math.max(last, 2));

/** One hit: its rank with 1, 2, … planes, from left to right, first place on top. */
export function slope(ranks, last, { width = 58, height = 26 }) {
  const pad = 4;
  const at = (rank, i) => [
    pad + (ranks.length > 1 ? (i * (width - 2 * pad)) / (ranks.length - 1) : (width - 2 * pad) / 2),
    pad + (rank === null ? 1 : depth(rank, last)) * (height - 2 * pad),
  ];
  const points = ranks.map((rank, i) => at(rank, i));
  return make("svg", { class: "slope", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": true },
    make("polyline", { points: points.map((p) => p.join(",")).join(" ") }),
    ...points.map(([x, y], i) => make("circle", { cx: x, cy: y, r: i === points.length - 1 ? 3 : 2, class: ranks[i] === null ? "beyond" : null })));
}

/** All hits in one picture; lines answer to the pointer and to `data-at`, the place of the hit in the list. */
export function slopes(hits, { width = 292, row = 17 }) {
  const columns = hits[0].ranks.length;
  const known = hits.flatMap((hit) => hit.ranks).filter((rank) => rank !== null);
  const last = Math.max(hits.length, ...known);
  const height = Math.max(hits.length * row, 90);
  const top = 20;
  const left = 44;
  const right = 30;
  const x = (i) => left + (columns > 1 ? (i * (width - left - right)) / (columns - 1) : 0);
  const y = (rank) => top + 6 + (rank === null ? 1 : depth(rank, last)) * (height - 12);
  const ticks = [1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000, 1000000].filter((t) => t <= last);
  const picture = make("svg", {
    class: "bump", viewBox: `0 0 ${width} ${height + top + 6}`, width, height: height + top + 6, role: "img",
    "aria-label": `Ranks of the first ${hits.length} hits with 1 to ${columns} planes`,
  });
  for (let i = 0; i < columns; i += 1) {
    picture.append(
      make("line", { class: "axis", x1: x(i), x2: x(i), y1: top, y2: top + height }),
      make("text", { class: "head", x: x(i), y: 11, "text-anchor": i === 0 && columns > 1 ? "start" : i === columns - 1 ? "end" : "middle" },
        i === 0 ? "1 plane" : `${i + 1} planes`));
  }
  for (const tick of ticks) picture.append(make("text", { class: "tick", x: left - 10, y: y(tick) + 3.5, "text-anchor": "end" }, tick.toLocaleString("en")));
  hits.forEach((hit, at) => {
    const points = hit.ranks.map((rank, i) => `${x(i)},${y(rank)}`).join(" ");
    picture.append(make("g", { class: "line", "data-at": at },
      make("title", {}, `${hit.text ?? hit.id}: ${hit.ranks.map((r) => (r === null ? "beyond" : `#${r}`)).join(" → ")}`),
      make("polyline", { class: "hand", points }), make("polyline", { points }),
      make("circle", { cx: x(0), cy: y(hit.ranks[0]), r: 2.5 }),
      make("circle", { cx: x(columns - 1), cy: y(hit.ranks[columns - 1]), r: 2.5 }),
      make("text", { class: "tick", x: width - right + 9, y: y(hit.ranks[columns - 1]) + 3.5 }, `${hit.ranks[columns - 1] ?? ""}`)));
  });
  return picture;
}

/** A line of recent values, oldest first, with the largest one named. */
export function spark(values, { width = 292, height = 46, unit = "ms" }) {
  const most = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const point = (value, i) => `${(i * step).toFixed(1)},${(height - 2 - (value / most) * (height - 14)).toFixed(1)}`;
  const line = values.map(point).join(" ");
  return make("svg", {
    class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `Latency of the last ${values.length} searches, at most ${most.toFixed(1)} ${unit}`,
  },
  make("polyline", { class: "area", points: `0,${height} ${line} ${width},${height}` }),
  make("polyline", { points: line }),
  make("text", { class: "tick", x: 0, y: 9 }, `${most.toFixed(1)} ${unit}`));
}
