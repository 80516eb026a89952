"use strict";

// Elements and numbers. Text from episodes becomes text nodes and attributes, never markup: nothing on this page is
// made of strings of HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

function show(place, ...children) {
  place.replaceChildren(...children.flat(Infinity).filter(Boolean));
}

const known = (value) => value !== null && value !== undefined;
const percent = (share) => (known(share) ? `${(100 * share).toFixed(1)}%` : "–");
const whole = (n) => (known(n) ? Number(n).toLocaleString("en") : "–");

/** A figure with about four digits that tell. */
function figure(x) {
  if (!known(x)) return "–";
  if (typeof x !== "number") return String(x);
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 100000 || size < 0.0001) return x.toExponential(2);
  if (Number.isInteger(x)) return whole(x);
  return String(Number(x.toPrecision(size >= 1000 ? 5 : 4)));
}

function seconds(s) {
  if (!known(s)) return "–";
  if (s < 0.001) return `${(1e6 * s).toFixed(0)} µs`;
  if (s < 1) return `${(1e3 * s).toFixed(s < 0.01 ? 1 : 0)} ms`;
  return s < 100 ? `${s.toFixed(1)} s` : `${(s / 60).toFixed(1)} min`;
}

const reward = (x) => (known(x) ? Number(x.toFixed(3)).toString() : "–");
const signed = (x) => (x > 0 ? "+" : "") + reward(x);
const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

/** What became of an episode: [class, words]. */
function outcome(episode) {
  if (episode.stop === "failed") return ["bad", "failed"];
  if (episode.success === true || episode.success === 1) return ["good", "success"];
  if (episode.success === false || episode.success === 0) return ["", "no success"];
  return ["none", episode.stop === "aborted" ? "aborted" : "ended"];
}

function interval(share, ci) {
  if (!known(share)) return [el("span", { class: "dim" }, "–")];
  const bar = el("span", { class: "bar" }, el("i"), ci ? el("b") : null);
  bar.firstChild.style.width = `${100 * share}%`;
  if (ci) {
    bar.lastChild.style.left = `${100 * ci[0]}%`;
    bar.lastChild.style.width = `${100 * (ci[1] - ci[0])}%`;
  }
  const words = ci ? ` (${(100 * ci[0]).toFixed(1)}–${(100 * ci[1]).toFixed(1)})` : "";
  return [percent(share), el("span", { class: "dim" }, words), bar];
}
