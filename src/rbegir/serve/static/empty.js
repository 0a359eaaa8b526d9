// What is said where no hits are: every such state tells what it is and what to do.

import { make } from "./draw.js";

const line = (...parts) => make("p", {}, ...parts);
const key = (name) => make("kbd", {}, name);
const say = (title, ...rest) => [make("h2", {}, title), ...rest];

/** The nodes to show instead of hits; none where there are hits. */
export function emptiness({ state, hits, info, answer, add }) {
  if (hits.length) return [];
  if (state === "failed") return say("No answer", line("What you typed is kept. The page goes on by itself when the service is back."));
  if (state === "locked") return say("A token is needed", line("This service answers only to those who have one."));
  if (state === "unspeakable") return say("Nothing to search for", line("A query needs at least one letter or digit."));
  if (info && info.keywords === 0) {
    if (info.read_only) return say("The index is empty", line("This service only reads it."));
    const button = make("button", { type: "button", class: "primary" }, "Add the first keyword");
    button.addEventListener("click", add);
    return say("The index is empty", line("What you add is searchable at once."), button);
  }
  if (answer?.asked.where) {
    return say("Nothing passes the filter", line("No keyword has these attributes. A filter is applied before scoring, so it hides no better hit."));
  }
  if (answer) return say("No hits", line("There is nothing to score."));
  return say("Type, and every keyword is scored",
    line("A keyword is stored as a base vector of bits and residuals that refine it. Each hit shows these planes as bars, coloured where they agree with the query, and how its rank moved when the residuals were added."),
    line(key("/"), " to search, ", key("↑"), " ", key("↓"), " through the hits, ", key("Enter"), " to open one, ", key("Esc"), " to come back."));
}
