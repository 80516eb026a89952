// The figures of a training run over its steps.

const CHARTS = [
  ["success", ["success", "eval_success"]], ["reward", ["reward", "eval_reward"]], ["loss", ["loss"]], ["entropy", ["entropy"]],
  ["KL divergence", ["kl", "mismatch_kl"]], ["norm of the gradient", ["grad_norm"]], ["clipped and masked tokens", ["clipped_share", "masked_share"]],
  ["tokens per second", ["tokens_per_second"]], ["staleness, versions", ["staleness_mean", "staleness_max"]], ["turns per episode", ["turns", "eval_turns"]],
  ["tokens per episode", ["episode_tokens_mean"]], ["invalid actions", ["invalid_actions"]], ["seconds per step", ["seconds", "rollout_seconds", "train_seconds"]],
  ["failed, retried, cancelled", ["failed", "retried", "cancelled"]], ["wasted tokens", ["wasted_tokens"]], ["learning rate", ["lr"]],
  ["value function", ["value_loss", "value_explained"]],
];
const W = 340, H = 130, LEFT = 46, RIGHT = 12, BOTTOM = 16, TOP = 6;
const curves = { smooth: false, text: "" };

class Curves {
  constructor(details) {
    this.details = details;
    this.charts = [];
    this.tiles = el("div", { class: "tiles" });
    this.main = el("div", { class: "charts" });
    this.rest = el("div", { class: "charts many" });
    this.all = el("details", { class: "all" }, el("summary", {}, "all other figures"), this.rest);
    const smooth = el("input", { type: "checkbox", onchange: (event) => { curves.smooth = event.target.checked; this.draw(this.steps); } });
    smooth.checked = curves.smooth;
    this.element = el("div", { class: "page", id: "curves" }, this.tiles, el("p", {}, el("label", {}, smooth, " smooth")), this.main, this.all);
  }

  draw(steps) {
    this.steps = steps;
    if (steps === null) return;  // nobody has said anything yet
    if (!steps.length) {
      show(this.main, el("p", { class: "dim" }, "There are no figures yet: they appear here after the first step."));
      return;
    }
    const names = [...new Set(steps.flatMap((step) => Object.keys(step)))].filter((name) => name !== "step"
      && steps.some((step) => typeof step[name] === "number"));
    const had = (name) => names.includes(name);
    const chosen = CHARTS.map(([title, keys]) => [title, keys.filter(had)]).filter(([, keys]) => keys.length);
    const shown = new Set(chosen.flatMap(([, keys]) => keys));
    this.charts = [];
    show(this.main, chosen.map(([title, keys]) => this.chart(title, keys)));
    show(this.rest, names.filter((name) => !shown.has(name)).sort().map((name) => this.chart(name, [name])));
    if (!chosen.length) this.all.open = true;
    this.drawTiles();
  }

  drawTiles() {
    const last = this.steps[this.steps.length - 1];
    const panels = this.steps.filter((step) => known(step.eval_success));
    const panel = panels[panels.length - 1];
    const tile = (name, ...value) => el("div", { class: "tile" }, el("b", {}, value), el("span", { class: "dim" }, name));
    const of = this.details.config.steps;
    show(this.tiles, tile("step", of ? `${whole(last.step)} of ${whole(of)}` : whole(last.step)),
      panel ? tile(`success on the panel, step ${panel.step}`, percent(panel.eval_success), el("small", { class: "dim" },
        panel.eval_ci95 ? ` ${panel.eval_ci95.map((x) => (100 * x).toFixed(1)).join("–")}` : "")) : null,
      known(last.reward) ? tile("reward of the last step", reward(last.reward)) : null,
      known(last.tokens_per_second) ? tile("tokens per second", whole(Math.round(last.tokens_per_second))) : null);
  }

  chart(title, names) {
    const lines = names.map((name) => this.steps.filter((step) => typeof step[name] === "number").map((step) => [step.step || 0, step[name], step]));
    const points = lines.flat();
    const x = scale(points.map(([at]) => at), LEFT, W - RIGHT), y = scale(points.map(([, value]) => value), H - BOTTOM, TOP, 0.05);
    const value = el("span", { class: "value" });
    const cross = svg("line", { class: "cross", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title },
      ticks(y.low, y.high).map((tick) => [svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(tick), y2: y(tick) }),
        svg("text", { x: LEFT - 5, y: y(tick) + 3, "text-anchor": "end" }, tick && (Math.abs(tick) < 0.0001 || Math.abs(tick) >= 1e6) ? tick.toExponential(0) : figure(tick))]),
      ticks(x.low, x.high, 5).filter(Number.isInteger).map((tick) => svg("text", { x: x(tick), y: H - 3, "text-anchor": "middle" }, whole(tick))),
      lines.map((line, n) => curve(line, n, x, y, names[n].startsWith("eval_"))), cross);
    const chart = { names, lines, value, cross, x };
    this.charts.push(chart);
    tell(chart, null);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const at = x.back((event.clientX - box.left) / box.width * W);
      this.charts.forEach((each) => tell(each, at));
    });
    picture.addEventListener("pointerleave", () => this.charts.forEach((each) => tell(each, null)));
    return el("div", { class: "chart" }, el("div", { class: "title" }, el("h3", {}, title), value), picture);
  }
}

/** The values of a chart's lines at a step, the last ones where none is pointed at. */
function tell(chart, at) {
  const nearest = (line) => line.reduce((best, point) => (!best || Math.abs(point[0] - at) <= Math.abs(best[0] - at) ? point : best), null);
  const found = chart.lines.map((line) => (at === null ? line[line.length - 1] : nearest(line)));
  show(chart.value, found.map((point, n) => el("span", { class: `k${n % 3}` }, `${chart.names.length > 1 ? ` ${chart.names[n]}` : ""} ${figure(point[1])}`)),
    at === null ? null : `  @ ${found[0][0]}`);
  chart.cross.setAttribute("visibility", at === null ? "hidden" : "visible");
  if (at !== null) for (const end of ["x1", "x2"]) chart.cross.setAttribute(end, chart.x(found[0][0]));
}

function curve(line, n, x, y, panel) {
  const path = (points) => points.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const band = line.filter(([, , step]) => panel && step.eval_ci95 && line[0][2].eval_success === line[0][1]);
  const edge = (side, points) => points.map(([at, , step]) => `${x(at).toFixed(1)},${y(Math.min(y.high, Math.max(y.low, step.eval_ci95[side]))).toFixed(1)}`);
  const parts = [];
  if (band.length > 1) parts.push(svg("polygon", { class: `band f${n % 3}`, points: [...edge(0, band), ...edge(1, [...band].reverse())].join(" ") }));
  const smooth = curves.smooth && line.length > 4 && !panel;
  if (smooth) parts.push(svg("path", { class: `raw c${n % 3}`, d: path(line) }));
  parts.push(svg("path", { class: `line c${n % 3}`, d: path(smooth ? smoothed(line) : line) }));
  if (panel || line.length < 3) parts.push(line.map(([at, value]) => svg("circle", { class: `f${n % 3}`, cx: x(at), cy: y(value), r: 2.2 })));
  return parts;
}

/** An exponential moving average over about a twentieth of the run, without a bias at its beginning. */
function smoothed(line) {
  const keep = Math.max(0.6, 1 - 20 / line.length);
  let sum = 0, weight = 0;
  return line.map(([at, value]) => {
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return [at, sum / weight];
  });
}

function scale(values, from, to, room = 0) {
  let low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const more = room * (high - low);
  low -= more;
  high += more;
  const place = (value) => from + (to - from) * (value - low) / (high - low);
  return Object.assign(place, { low, high, back: (at) => low + (high - low) * (at - from) / (to - from) });
}

/** Round numbers within a range. */
function ticks(low, high, about = 4) {
  const raw = (high - low) / about, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((n) => n * size >= raw) * size;
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + 1e-9 * step; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}
