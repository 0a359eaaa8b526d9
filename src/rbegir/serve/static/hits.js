// The list of hits. The text of a hit is a button: it takes the focus, and opens what the hit is made of.

import { agreement, bitsOf, make, planesPicture, slope } from "./draw.js";

const number = (value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value);

/** "12 → 1", or the first rank beyond what the service looks at. */
export function journey(ranks) {
  const name = (rank) => (rank === null ? "beyond" : `${rank.toLocaleString("en")}`);
  return ranks.length < 2 ? name(ranks[0]) : `${name(ranks[0])} → ${name(ranks[ranks.length - 1])}`;
}

export function attributeChips(attributes) {
  const entries = Object.entries(attributes ?? {}).filter(([, value]) => value !== null);
  if (!entries.length) return null;
  return make("ul", { class: "chips", "aria-label": "Attributes" }, ...entries.map(([name, value]) => make("li", {},
    make("span", { class: "name" }, name), ` ${number(value)}`)));
}

/** Why a reranked hit is there, in one line. */
function reason(why) {
  if (!why) return null;
  const measures = ["meaning", "spelling", "words"].map((name) => `${name} ${why[name].toFixed(2)}`.replace(" 0.", " ."));
  const rank = why.code_rank === null ? "found by words" : `code rank ${why.code_rank}`;
  return make("p", { class: "small why" }, [...measures, rank].join(" · "));
}

/** The picture of the query's own planes, the measure of all others. */
export function askedPicture(planes) {
  const bits = planes.map(bitsOf);
  return [
    make("span", { class: "small" }, "the query"),
    planesPicture(bits, null, { label: `The query: ${planes.length} planes of ${bits[0].length} bits` }),
    make("span", { class: "small key" }, make("span", { class: "dot yes" }), "agrees", make("span", { class: "dot no" }), "differs"),
  ];
}

function planesOf(hit, query) {
  if (!hit.planes || !query) return null;
  const bits = hit.planes.map(bitsOf);
  const counts = bits.map((plane, t) => (query[t] ? agreement(plane, query[t]) : null));
  const words = counts.map((count, t) => (count === null ? "" : `plane ${t}: ${count} of ${bits[t].length} bits agree`)).filter(Boolean);
  return { bits, counts, label: `Planes of this keyword, ${words.join(", ")}` };
}

/** One hit. `actions` are callbacks: like(text), and remove(hit) where the service can be changed. */
export function hitItem(hit, at, { query, last, open, actions }) {
  const planes = planesOf(hit, query);
  const text = hit.text ?? "(no text)";
  const moved = hit.ranks ? `, rank with one plane and with all: ${journey(hit.ranks)}` : "";
  const item = make("li", { class: open ? "hit open" : "hit", "data-at": at, "data-id": hit.id });
  const button = make("button", {
    type: "button", class: "text", tabindex: at === 0 ? 0 : -1, "aria-expanded": String(open),
    "aria-label": `${at + 1}. ${text}, score ${hit.score.toFixed(3)}${moved}`,
  }, text);
  item.append(
    make("span", { class: "place", "aria-hidden": true }, String(at + 1)),
    make("div", { class: "what" }, button, reason(hit.why), attributeChips(hit.attributes)),
    planes ? make("div", { class: "planes" }, planesPicture(planes.bits, query, { label: planes.label })) : null,
    hit.ranks && hit.ranks.length > 1
      ? make("div", { class: "rank" }, slope(hit.ranks, last, {}), make("span", { class: "small" }, journey(hit.ranks))) : null,
    make("div", { class: "score" }, make("span", {}, hit.score.toFixed(3)), meter(hit.code_score ?? hit.score)),
  );
  if (open) item.append(detail(hit, at, planes, query, actions));
  return item;
}

function meter(score) {
  const width = Math.max(0, Math.min(1, score)) * 56;
  return make("svg", { class: "meter", viewBox: "0 0 56 3", width: 56, height: 3, "aria-hidden": true },
    make("rect", { class: "track", width: 56, height: 3, rx: 1.5 }), make("rect", { class: "full", width, height: 3, rx: 1.5 }));
}

function detail(hit, at, planes, query, actions) {
  const like = make("button", { type: "button", class: "quiet" }, "Search for this text");
  const remove = make("button", { type: "button", class: "quiet", "data-do": "delete" }, "Delete");
  like.addEventListener("click", () => actions.like(hit.text));
  remove.addEventListener("click", () => actions.remove(hit));
  const layers = planes ? planes.bits.map((bits, t) => make("div", { class: "layer" },
    make("p", { class: "small" }, make("span", {}, t === 0 ? "base vector" : `residual ${t}`),
      planes.counts[t] === null ? null : make("span", {}, `${planes.counts[t]} of ${bits.length} bits agree`)),
    query[t] ? planesPicture([query[t]], null, { height: 5, label: `The query, plane ${t}` }) : null,
    planesPicture([bits], query[t] ? [query[t]] : null, { height: 9, label: `This keyword, plane ${t}` }),
    hit.ranks ? make("p", { class: "small" }, make("span", {}, `rank with ${t + 1} plane${t ? "s" : ""}`),
      make("span", {}, hit.ranks[t] === null ? "beyond" : hit.ranks[t].toLocaleString("en"))) : null)) : [];
  return make("div", { class: "detail" },
    make("div", { class: "layers" }, ...layers),
    make("dl", { class: "facts" }, make("dt", {}, "id"), make("dd", { class: "mono" }, String(hit.id)),
      make("dt", {}, "score"), make("dd", { class: "mono" }, hit.score.toFixed(6)),
      ...(hit.code_score === hit.score || hit.code_score === undefined ? [] : [
        make("dt", {}, "cosine of the codes"), make("dd", { class: "mono" }, hit.code_score.toFixed(6)),
        make("dt", {}, "rank by code, reranked"), make("dd", { class: "mono" }, `${hit.ranks?.at(-1) ?? "beyond"}, ${at + 1}`)]),
      ...Object.entries(hit.attributes ?? {}).flatMap(([name, value]) => [
        make("dt", {}, name), make("dd", { class: "mono" }, value === null ? "null" : String(value))])),
    make("div", { class: "row" }, hit.text ? like : null, actions.remove ? remove : null));
}
