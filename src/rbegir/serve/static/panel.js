// The live panel: what this page has seen, what the service counts (GET /metrics), what the index holds.
//
// Counters only ever grow, so a figure "now" is the difference of two readings: requests a second, the mean of
// each stage, and quantiles read off the histogram's buckets.

import { make, spark } from "./draw.js";

// The names of the service's metrics that the panel reads.
const STAGES = "rbegir_search_stage_seconds";
const BATCHES = "rbegir_batch_queries"; // a histogram: its count is scans, its sum queries
const WAITING = "rbegir_queue_depth";
const REQUESTS = "rbegir_requests_total";

const KEPT = 60;
const seen = []; // milliseconds of the last searches, as this page saw them

/** Prometheus text → [{name, labels, value}]. */
export function parseMetrics(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!match || line.startsWith("#")) continue;
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[key] = value;
    found.push({ name: match[1], labels, value: match[3] === "+Inf" ? Infinity : Number(match[3]) });
  }
  return found;
}

/** The value below which a share of the observations lies: cumulative buckets [[bound, count]], linear inside. */
export function quantile(buckets, share) {
  const total = buckets.length ? buckets[buckets.length - 1][1] : 0;
  if (!total) return null;
  let low = 0;
  let before = 0;
  for (const [bound, count] of buckets) {
    if (count >= share * total) {
      if (bound === Infinity) return low;
      return low + ((share * total - before) / Math.max(count - before, 1e-9)) * (bound - low);
    }
    [low, before] = [bound, count];
  }
  return low;
}

const sum = (metrics, name, wanted = {}) => metrics
  .filter((m) => m.name === name && Object.entries(wanted).every(([key, value]) => m.labels[key] === value))
  .reduce((total, m) => total + m.value, 0);

const ms = (value) => (value === null || !Number.isFinite(value) ? "–" : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

export function bytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${at ? value.toPrecision(3) : value} ${units[at]}`;
}

function facts(list, entries) {
  list.replaceChildren(...entries.filter(([, value]) => value !== null && value !== undefined)
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
}

/** A search took so long, seen from here. */
export function noteSeen(milliseconds) {
  seen.push(milliseconds);
  if (seen.length > KEPT) seen.shift();
  const sorted = [...seen].sort((a, b) => a - b);
  const at = (share) => sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
  document.getElementById("seen").replaceChildren(
    figure(ms(milliseconds), "ms, last"), figure(ms(at(0.5)), "ms, median"), figure(ms(at(0.99)), "ms, p99"));
  if (seen.length > 1) document.getElementById("spark").replaceChildren(spark(seen, {}));
}

const figure = (value, unit) => make("p", { class: "figure" }, make("b", {}, value), make("span", { class: "small" }, unit));

let earlier = null;

/** A reading of /metrics: stages, throughput, queue; of this index, where there are several. */
export function showMetrics(text, now, index) {
  const metrics = parseMetrics(text).filter((m) => (m.labels.index ?? index) === index);
  const stages = [...new Set(metrics.filter((m) => m.name === STAGES + "_count").map((m) => m.labels.stage))];
  const reading = { now, metrics };
  const before = earlier?.metrics ?? [];
  const seconds = earlier ? (now - earlier.now) / 1000 : null;
  const delta = (name, wanted) => sum(metrics, name, wanted) - sum(before, name, wanted);
  const rows = stages.map((stage) => {
    let count = delta(STAGES + "_count", { stage });
    let total = delta(STAGES + "_sum", { stage });
    if (!count) [count, total] = [sum(metrics, STAGES + "_count", { stage }), sum(metrics, STAGES + "_sum", { stage })];
    return [stage, count ? (1000 * total) / count : null];
  }).filter(([, value]) => value !== null);
  const most = Math.max(...rows.map(([, value]) => value), 1e-9);
  document.getElementById("stages").replaceChildren(...(rows.length ? [
    make("h3", {}, "Stages in the service, mean"),
    make("dl", { class: "bars" }, ...rows.flatMap(([stage, value]) => [
      make("dt", {}, stage),
      make("dd", {}, make("svg", { viewBox: "0 0 120 6", width: 120, height: 6, "aria-hidden": true },
        make("rect", { class: "full", width: Math.max(1, (value / most) * 120), height: 6, rx: 1 })), make("span", { class: "num" }, `${ms(value)} ms`))])),
  ] : []));
  const searched = delta(BATCHES + "_sum");
  const scans = delta(BATCHES + "_count");
  const failed = metrics.filter((m) => m.name === REQUESTS && m.labels.status >= "500").reduce((total, m) => total + m.value, 0);
  facts(document.getElementById("service"), [
    ["queries answered", sum(metrics, BATCHES + "_sum").toLocaleString("en")],
    ["queries a second", seconds ? (searched / seconds).toFixed(1) : "–"],
    ["queries a scan", scans ? (searched / scans).toFixed(1) : null],
    ["waiting", sum(metrics, WAITING)],
    ["failures", failed.toLocaleString("en")],
  ]);
  earlier = reading;
}

/** What GET /v1/index says. */
export function showIndex(info) {
  facts(document.getElementById("index"), [
    ["keywords", info.keywords?.toLocaleString("en")],
    ["bytes each", info.bytes_per_keyword],
    ["codes", info.keywords !== undefined ? bytes(info.keywords * info.bytes_per_keyword) : null],
    ["on disk", info.disk_bytes !== undefined ? bytes(info.disk_bytes) : null],
    ["dimensions", info.n],
    ["planes", `${info.keyword_planes} a keyword, ${info.query_planes ?? "?"} a query`],
    ["segments", info.segments],
    ["deleted", info.deleted ? info.deleted.toLocaleString("en") : null],
    ["device", Array.isArray(info.devices) ? info.devices.join(", ") : info.devices],
  ]);
}
