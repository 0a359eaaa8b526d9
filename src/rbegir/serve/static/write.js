// Changes: the sheet that adds a keyword, and deletion with a way back.

import * as api from "./api.js";
import { make } from "./draw.js";

const byId = (id) => document.getElementById(id);

/** Text of a form field → a value of an attribute's type, the items of a list between commas; null when it is empty. */
export function typed(text, type) {
  if (text.trim() === "") return null;
  const list = /^list<item: (\w+)>$/.exec(type);
  if (list) return text.split(",").map((item) => typed(item.trim(), list[1])).filter((item) => item !== null);
  if (type === "bool") return ["true", "yes", "1"].includes(text.trim().toLowerCase());
  if (/^u?int/.test(type)) return /^-?\d+$/.test(text.trim()) ? Number(text) : text;
  if (/^(float|double|halffloat)/.test(type)) return Number.isFinite(Number(text)) ? Number(text) : text;
  return text;
}

/** The sheet "Add a keyword". `done(keyword)` is called when it has been stored. */
export function openAdd(info, text, done, onProblem) {
  const sheet = byId("add");
  const form = byId("add-form");
  form.reset();
  form.elements.text.value = text;
  const whole = info.id_type === "int64";
  byId("id-note").textContent = whole
    ? "A whole number that no other keyword has." : "Any text that no other keyword has.";
  form.elements.id.value = whole ? String(info.next_row ?? info.keywords) : `page-${Date.now().toString(36)}`;
  form.elements.id.inputMode = whole ? "numeric" : "text";
  byId("add-error").textContent = "";
  byId("add-attributes").replaceChildren(...Object.entries(info.attributes ?? {}).map(([name, type]) => make("label", { class: "field" },
    make("span", {}, name, make("span", { class: "small" }, ` ${type}`)), make("input", { name: `attribute-${name}`, type: "text", autocomplete: "off" }))));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const attributes = {};
    for (const [name, type] of Object.entries(info.attributes ?? {})) {
      const value = typed(form.elements[`attribute-${name}`].value, type);
      if (value !== null) attributes[name] = value;
    }
    const given = form.elements.id.value.trim();
    const keyword = { id: whole && /^-?\d+$/.test(given) ? Number(given) : given, text: form.elements.text.value, attributes };
    if (!keyword.text.trim()) { byId("add-error").textContent = "A keyword needs a text."; form.elements.text.focus(); return; }
    try {
      await api.add(keyword);
      sheet.close();
      done(keyword);
    } catch (problem) {
      byId("add-error").textContent = [problem.detail, problem.hint].filter(Boolean).join(" – ");
      if (problem.unauthorised) onProblem(problem, () => form.requestSubmit());
    }
  };
  sheet.showModal();
  (text ? form.elements.id : form.elements.text).focus();
}

const TOAST = 8000; // how long a message stays
let hide = 0;

/** A short message at the bottom, with one thing that can be done about it. */
export function toast(message, action, run) {
  const place = byId("toast");
  clearTimeout(hide);
  place.replaceChildren(make("span", {}, message));
  if (action) {
    const button = make("button", { type: "button" }, action);
    button.addEventListener("click", () => { place.replaceChildren(); run(); });
    place.append(button);
  }
  hide = setTimeout(() => place.replaceChildren(), TOAST);
}
