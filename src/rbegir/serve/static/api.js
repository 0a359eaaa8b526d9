// The service as this page sees it: one function a call, one kind of failure.
//
// A failure is a Problem: what RFC 9457 documents say, or the same fields made here when there is none
// (the server is gone, something between us answered in HTML). Nothing else is ever thrown, except that a
// request that was aborted on purpose rejects with AbortError, which callers drop.

const TOKEN = "rbegir.token";

export class Problem extends Error {
  constructor({ status = 0, type = "", title = "", detail = "", hint = "", retryAfter = 0 }) {
    super(detail || title);
    Object.assign(this, { status, type, title, detail: detail || title, hint, retryAfter });
  }

  /** The server could not be reached at all. */
  get gone() { return this.status === 0; }

  get unauthorised() { return this.status === 401 || this.status === 403; }

  get busy() { return this.status === 503; }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) || "",
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

async function ask(method, path, { body, signal, accept = "application/json" } = {}) {
  const headers = { Accept: accept };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let response;
  let text;
  try {
    response = await fetch(path, {
      method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body, rawNumbers),
    });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "The service does not answer", hint: "is it still running?" });
  }
  if (!response.ok) throw problem(response, text);
  if (accept !== "application/json") return text;
  try {
    return text ? JSON.parse(text, exactNumbers) : {};
  } catch {
    throw new Problem({ status: response.status, title: "The answer is not JSON", hint: "is this address a rbegir service?" });
  }
}

// Ids and whole numbers are 64-bit. One that JavaScript would round becomes a BigInt on the way in, and its digits
// on the way out.
function exactNumbers(key, value, context) {
  const rounded = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "");
  return rounded ? BigInt(context.source) : value;
}

function rawNumbers(key, value) {
  return typeof value === "bigint" ? JSON.rawJSON(value.toString()) : value;
}

function problem(response, text) {
  let said = {};
  try {
    said = JSON.parse(text);
  } catch {
    said = { title: `The answer was ${response.status} ${response.statusText}`.trim() };
  }
  return new Problem({
    ...said, status: response.status, retryAfter: Number(response.headers.get("Retry-After")) || 0,
  });
}

let name = null; // of the index that is asked; null: the default one

/** Ask this index from now on. */
export const use = (chosen) => { name = chosen; };
const of = (path) => (name === null ? `v1/${path || "index"}` : `v1/indexes/${encodeURIComponent(name)}${path && `/${path}`}`);

export const indexes = async () => (await ask("GET", "v1/indexes")).indexes;
export const search = (body, signal) => ask("POST", of("search"), { body, signal });
export const add = (keyword) => ask("POST", of("keywords"), { body: { keywords: [keyword], replace: false } });
export const remove = (id) => ask("DELETE", of("keywords"), { body: { ids: [id] } });
export const removeAll = (where) => ask("DELETE", of("keywords"), { body: { where } });
export const count = async (where) => (await ask("GET", `${of("keywords:count")}?where=${encodeURIComponent(where)}`)).keywords;
export const index = () => ask("GET", of(""));
export const metrics = () => ask("GET", "metrics", { accept: "text/plain" });
export const ready = () => ask("GET", "readyz", { accept: "*/*" });
