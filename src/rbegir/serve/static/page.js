// The page: what is asked, what came back, and what to do when nothing did.
//
// One search is in flight at a time. Typing waits DEBOUNCE ms, then aborts the one before; an answer that
// arrives late is dropped by its number, so the list always belongs to what stands in the box. The question
// lives in the address (?q=…), so that it can be shared and survives a reload.

import * as api from "./api.js";
import { bitsOf, make, slopes } from "./draw.js";
import { emptiness } from "./empty.js";
import { askedPicture, hitItem } from "./hits.js";
import { noteSeen, showIndex, showMetrics } from "./panel.js";
import { openAdd, toast } from "./write.js";

const DEBOUNCE = 90;
const SHOW_BUSY = 150; // a search shorter than this shows no progress line: it would only flicker
const METRICS_EVERY = 2000;
const INDEX_EVERY = 10000;
const RETRY = [1000, 2000, 4000, 8000]; // waits while the service is gone
const SLOPES = 20;

const byId = (id) => document.getElementById(id);
const q = byId("q");
const where = byId("where");
const list = byId("hits");
const checked = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

let served = null; // the index that is asked: an entry of GET /v1/indexes
let info = null; // what GET /v1/index said
let answer = null; // the newest result that is shown
let open = null; // id of the hit that is open
let number = 0; // of the newest search
let flight = null; // its AbortController
let typing = 0; // the timer of the search that waits for more typing
let coming = 0; // the timer of the next look for a service that is gone
let tries = 0;

// ---- asking ----

function question() {
  const planes = checked("planes");
  const mode = checked("mode");
  return {
    queries: [q.value.trim()], k: Number(byId("k").value), where: where.value.trim() || null, mode,
    planes: planes && mode === "exact" ? Number(planes) : null, explain: true, why: true,
  };
}

function remember() {
  const asked = question();
  const parts = new URLSearchParams();
  if (asked.queries[0]) parts.set("q", asked.queries[0]);
  if (asked.where) parts.set("where", asked.where);
  if (asked.mode !== "exact") parts.set("mode", asked.mode);
  if (asked.planes) parts.set("planes", asked.planes);
  if (asked.k !== 20) parts.set("k", asked.k);
  if (served && !served.default) parts.set("index", served.name);
  history.replaceState(null, "", parts.size ? `?${parts}` : location.pathname);
}

function recall() {
  const parts = new URLSearchParams(location.search);
  q.value = parts.get("q") ?? "";
  where.value = parts.get("where") ?? "";
  const mode = document.querySelector(`input[name="mode"][value="${CSS.escape(parts.get("mode") ?? "")}"]`);
  if (mode) mode.checked = true;
  if ([...byId("k").options].some((option) => option.text === parts.get("k"))) byId("k").value = parts.get("k");
}

function soon() {
  clearTimeout(typing);
  typing = setTimeout(run, DEBOUNCE);
}

async function run() {
  clearTimeout(typing);
  clearTimeout(coming);
  flight?.abort();
  remember();
  byId("planes").disabled = checked("mode") === "paper";
  const mine = ++number;
  if (!q.value.trim()) {
    answer = null;
    settle();
    return show();
  }
  flight = new AbortController();
  const busy = setTimeout(() => { byId("busy").hidden = false; list.classList.add("stale"); }, SHOW_BUSY);
  const began = performance.now();
  try {
    const asked = question();
    const got = await api.search(asked, flight.signal);
    if (mine !== number) return;
    noteSeen(performance.now() - began);
    answer = { ...got.results[0], took: got.took_ms, asked };
    well();
    show();
  } catch (problem) {
    if (mine !== number || problem.name === "AbortError") return;
    fail(problem);
  } finally {
    clearTimeout(busy);
    if (mine === number) settle();
  }
}

function settle() {
  byId("busy").hidden = true;
  list.classList.remove("stale");
}

// ---- when something is wrong ----

function fail(problem) {
  if (problem.type?.endsWith("invalid-filter") || (where.value && /\bwhere\b/.test(problem.detail))) {
    where.setAttribute("aria-invalid", "true");
    byId("where-error").textContent = [problem.detail, problem.hint].filter(Boolean).join(" – ");
    return;
  }
  filterIsFine();
  answer = null;
  if (problem.type?.endsWith("invalid-text")) {
    well();
    return show("unspeakable");
  }
  if (problem.unauthorised) {
    show("locked");
    return askToken(problem, run);
  }
  show("failed");
  notice(problem);
  if (problem.gone || problem.busy) comeBack(problem);
}

/** The service is gone or busy: look for it, ever less often, and go on where we were. */
function comeBack(problem) {
  clearTimeout(coming);
  const wait = problem.retryAfter ? 1000 * problem.retryAfter : RETRY[Math.min(tries, RETRY.length - 1)];
  tries += 1;
  coming = setTimeout(async () => {
    try {
      await api.ready();
      if (await start()) run();
    } catch (again) {
      notice(again);
      if (again.gone || again.busy) comeBack(again);
    }
  }, wait);
}

function notice(problem) {
  const again = make("button", { type: "button" }, "Try again");
  again.addEventListener("click", () => { tries = 0; run(); });
  byId("notice").replaceChildren(make("strong", {}, problem.title || "Something went wrong"),
    make("span", {}, problem.detail === problem.title ? "" : problem.detail), make("span", { class: "small" }, problem.hint ?? ""), again);
  byId("notice").hidden = false;
}

function well() {
  tries = 0;
  byId("notice").hidden = true;
  filterIsFine();
}

function filterIsFine() {
  where.removeAttribute("aria-invalid");
  byId("where-error").textContent = "";
}

function askToken(problem, then) {
  const sheet = byId("token");
  const form = byId("token-form");
  byId("token-open").hidden = false;
  byId("token-why").textContent = problem ? [problem.detail, problem.hint].filter(Boolean).join(" – ") : "";
  form.onsubmit = async () => {
    api.token.set(form.elements.token.value.trim());
    if (await start()) then();
  };
  if (sheet.open) return; // someone is typing into it
  form.elements.token.value = "";
  sheet.showModal();
}

/** A background reading failed: worth a word only if the service is gone. */
function idle(problem) {
  if (!problem.gone || tries) return;
  notice(problem);
  comeBack(problem);
}

// ---- showing ----

function show(state) {
  const hits = answer?.hits ?? [];
  const query = answer?.query_planes?.map(bitsOf) ?? null;
  const last = Math.max(2, ...hits.flatMap((hit) => hit.ranks ?? []).filter((rank) => rank !== null));
  if (!hits.some((hit) => hit.id === open)) open = null;
  const offered = info?.read_only ? { like: actions.like } : actions;
  const had = document.activeElement?.matches(".text") ? document.activeElement.closest(".hit").dataset.id : undefined;
  list.replaceChildren(...hits.map((hit, at) => hitItem(hit, at, { query, last, open: hit.id === open, actions: offered })));
  if (had !== undefined) list.querySelector(`[data-id="${CSS.escape(had)}"] .text`)?.focus();
  byId("query-planes").hidden = !(query && hits.length);
  if (query && hits.length) byId("query-planes").replaceChildren(...askedPicture(answer.query_planes));
  byId("summary").textContent = hits.length ? summary(hits) : "";
  certificate();
  const moving = hits.filter((hit) => hit.ranks && hit.ranks.length > 1).slice(0, SLOPES);
  byId("refine").hidden = !moving.length;
  if (moving.length) byId("slopes").replaceChildren(slopes(moving, {}));
  byId("nothing").replaceChildren(...emptiness({ state, hits, info, answer, add }));
  if (!where.value.trim()) examples();
  byId("delete-all").hidden = !answer?.asked.where || info?.read_only !== false;
}

function summary(hits) {
  const all = info ? ` of ${info.keywords.toLocaleString("en")} keywords, every one scored,` : "";
  return `${hits.length} best${answer.asked.where ? " that pass the filter" : ""}${all} in ${answer.took.toFixed(1)} ms`;
}

const percent = (share) => `${(100 * share).toFixed(share > 0.9999 && share < 1 ? 4 : 2)} %`;

function certificate() {
  const place = byId("certificate");
  const paper = answer?.expected_recall ?? null;
  const refined = answer?.recall ?? null;
  place.hidden = paper === null && refined === null;
  if (paper !== null) {
    const misses = (answer.p_miss_at_most ?? []).slice(0, 3).map((share, l) => `P(miss ≤ ${l}) = ${percent(share)}`);
    place.replaceChildren(make("b", {}, `Expected recall ${percent(paper)}`),
      ". The published selection keeps the best of every 256 keywords a thread sees; what it may miss is known exactly. ",
      make("span", {}, misses.join(", ")));
  } else if (refined !== null) {
    place.replaceChildren(make("b", {}, `Estimated recall ${percent(refined)}`),
      `. Every keyword was scored with ${answer.asked.planes} plane${answer.asked.planes > 1 ? "s" : ""}, the best of them again with all.`);
  }
}

// ---- doing ----

const actions = {
  like(text) { q.value = text; window.scrollTo({ top: 0 }); q.focus(); run(); },
  async remove(hit) {
    try {
      await api.remove(hit.id);
    } catch (problem) {
      return problem.unauthorised ? askToken(problem, () => actions.remove(hit)) : notice(problem);
    }
    toast(`Deleted “${hit.text ?? hit.id}”`, "Undo", () => restore(hit));
    changed();
    q.focus();
  },
};

async function restore(hit) {
  const attributes = Object.fromEntries(Object.entries(hit.attributes ?? {}).filter(([, value]) => value !== null));
  try {
    await api.add({ id: hit.id, text: hit.text, attributes });
    toast(`“${hit.text}” is back`);
    changed();
  } catch (problem) {
    notice(problem);
  }
}

/** Delete every keyword that passes the filter, after saying how many that are. */
async function removeAll() {
  const filter = where.value.trim();
  try {
    const count = await api.count(filter);
    if (!confirm(`Delete ${count.toLocaleString("en")} keywords that pass “${filter}”? This cannot be undone.`)) return;
    const { deleted } = await api.removeAll(filter);
    toast(`Deleted ${deleted.toLocaleString("en")} keywords`);
    changed();
  } catch (problem) {
    if (problem.unauthorised) askToken(problem, removeAll);
    else fail(problem);
  }
}

function add() {
  if (!info) return;
  openAdd(info, answer && !answer.hits.length ? q.value.trim() : "", (keyword) => {
    toast(`Added “${keyword.text}”, durable and searchable`);
    q.value = keyword.text;
    changed();
  }, askToken);
}

function changed() {
  refreshIndex().then(run, notice);
}

function toggle(item) {
  const hit = answer.hits[Number(item.dataset.at)];
  open = open === hit.id ? null : hit.id;
  show();
  list.querySelector(`[data-at="${item.dataset.at}"] .text`)?.focus();
}

function near(at) {
  for (const element of document.querySelectorAll(".near")) element.classList.remove("near");
  if (at === undefined) return;
  for (const element of document.querySelectorAll(`.hit[data-at="${at}"], .line[data-at="${at}"]`)) element.classList.add("near");
}

// ---- the frame ----

function describe() {
  byId("about").textContent = `${info.keywords.toLocaleString("en")} keywords · ${info.bytes_per_keyword} bytes each · ${info.n} dimensions · ${info.keyword_planes} plane${info.keyword_planes > 1 ? "s" : ""}`;
  q.placeholder = info.keywords ? `Search ${info.keywords.toLocaleString("en")} keywords` : "Search";
  byId("add-open").hidden = info.read_only === true;
  showIndex(info);
}

/** Choices that follow from what the index is. */
function furnish() {
  const planes = byId("planes");
  const chosen = checked("planes") || new URLSearchParams(location.search).get("planes");
  for (const old of planes.querySelectorAll("label:not(:first-of-type)")) old.remove();
  for (let count = info.keyword_planes - 1; count >= 1; count -= 1) {
    planes.append(make("label", { title: `Score with ${count} plane${count > 1 ? "s" : ""}, refine the best with all` },
      make("input", { type: "radio", name: "planes", value: count, checked: String(count) === chosen }), make("span", {}, `${count}, then all`)));
  }
  planes.hidden = info.keyword_planes < 2;
}

/** Filters to try, for the first columns and the text, with a value that one of the hits has: each passes something. */
function examples() {
  const hits = answer?.hits ?? [];
  const made = Object.entries(info?.attributes ?? {}).slice(0, 3).map(([name, type]) => {
    const column = /^[A-Za-z_]\w*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
    const values = hits.map((hit) => hit.attributes?.[name]).filter((value) => value !== null && value !== undefined);
    if (!values.length) return `${column} is not null`;
    const literal = (value) => (typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value));
    if (type.startsWith("list")) {
      const items = values.flat();
      return items.length ? `contains(${column}, ${literal(items[0])})` : `${column} is not null`;
    }
    const middle = [...values].sort((a, b) => (a < b ? -1 : 1))[values.length >> 1];
    if (type === "bool") return column;
    return `${column} ${typeof middle === "string" ? "=" : "<="} ${literal(middle)}`;
  });
  if (made.length > 1) made.push(`${made[0]} and ${made[1]}`);
  const word = hits[0]?.text?.match(/[\p{L}\p{N}]{3,}/u)?.[0];
  if (word) made.push(`contains(text, '${word}')`);
  byId("examples").replaceChildren(...made.map((text) => {
    const button = make("button", { type: "button" }, text);
    button.addEventListener("click", () => { where.value = text; run(); });
    return button;
  }));
}

/** The indexes of the service, to choose from if there are several. */
async function offerIndexes() {
  const listed = await api.indexes();
  const wanted = served?.name ?? new URLSearchParams(location.search).get("index");
  served = listed.find((one) => one.name === wanted) ?? listed[0];
  api.use(served.default ? null : served.name);
  byId("names").hidden = listed.length < 2;
  byId("name").replaceChildren(...listed.map((one) => make("option", { value: one.name, selected: one === served }, one.name)));
}

async function choose(name) {
  served = { name };
  answer = null;
  where.value = "";
  if (await start()) run();
}

async function refreshIndex() {
  info = await api.index();
  describe();
}

/** Learn what is served. False if that failed; then the reason is on the screen, and the way on prepared. */
async function start() {
  try {
    await offerIndexes();
    await refreshIndex();
    furnish();
    well();
    return true;
  } catch (problem) {
    fail(problem);
    return false;
  }
}

function theme(next) {
  const names = { system: "as the system", light: "light", dark: "dark" };
  const current = localStorage.getItem("rbegir.theme") ?? "system";
  const chosen = next ? { system: "light", light: "dark", dark: "system" }[current] : current;
  localStorage.setItem("rbegir.theme", chosen);
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  byId("theme").setAttribute("aria-label", `Colours: ${names[chosen]}`);
  byId("theme").title = `Colours: ${names[chosen]}`;
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const writing = event.target.matches("input:not([type=radio]), select, textarea");
  const item = event.target.closest(".hit");
  if (event.key === "/" && !writing) {
    event.preventDefault();
    q.focus();
    q.select();
  } else if (event.key === "Escape") {
    if (item) q.focus();
    else if (event.target === q && q.value) { q.value = ""; run(); }
    else if (event.target === where) { where.value = ""; run(); }
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (item || event.target === q)) {
    event.preventDefault();
    const at = item ? Number(item.dataset.at) + (event.key === "ArrowDown" ? 1 : -1) : event.key === "ArrowDown" ? 0 : -1;
    if (at < 0) q.focus();
    else list.querySelector(`[data-at="${at}"] .text`)?.focus();
  } else if (event.key === "Delete" && event.target.matches(".hit .text") && !info?.read_only) {
    actions.remove(answer.hits[Number(item.dataset.at)]);
  }
}

/** Again and again, while someone can see it. */
function every(period, work, failed) {
  const step = async () => {
    if (!document.hidden && !tries) await work().catch(failed);
    setTimeout(step, period);
  };
  step();
}

q.addEventListener("input", soon);
where.addEventListener("input", soon);
byId("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
byId("form").addEventListener("change", (event) => { if (event.target !== q && event.target !== where) run(); });
byId("add-open").addEventListener("click", add);
byId("delete-all").addEventListener("click", removeAll);
byId("name").addEventListener("change", (event) => choose(event.target.value));
byId("add-cancel").addEventListener("click", () => byId("add").close());
byId("token-open").addEventListener("click", () => askToken(null, run));
byId("token-cancel").addEventListener("click", () => byId("token").close());
byId("theme").addEventListener("click", () => theme(true));
document.addEventListener("keydown", keys);
list.addEventListener("click", (event) => {
  const item = event.target.closest(".hit");
  if (item && !event.target.closest(".detail") && !getSelection().toString()) toggle(item);
});
for (const place of [list, byId("slopes")]) {
  for (const kind of ["pointerover", "focusin"]) place.addEventListener(kind, (event) => near(event.target.closest("[data-at]")?.dataset.at));
  place.addEventListener("pointerleave", () => near());
}

theme(false);
if (api.token.get()) byId("token-open").hidden = false;
recall();
const known = await start();
q.focus({ preventScroll: true });
if (known) await run();
every(METRICS_EVERY, async () => showMetrics(await api.metrics(), performance.now(), served?.index), idle);
every(INDEX_EVERY, refreshIndex, idle);
