// Which page is shown (`location.hash` says), and what the keys do.

const top_ = document.getElementById("top");
const main = document.getElementById("main");
const help = document.getElementById("help");
const QUERY = ["show", "sort", "text", "step"];
const KEYS = [
  ["j, k", "next, previous episode (or run)"], ["J, K", "ten at a time"], ["n, p", "next, previous turn"], ["enter", "open; go to the episode's text"],
  ["esc", "back"], ["g", "compare the samples of the task"], ["c", "another colouring of tokens"], ["o", "long texts whole, or their beginnings"],
  ["/", "search"], ["f", "next filter"], ["s", "next order"], ["e, t, a", "episodes, training curves, about the run"], ["r", "all runs"], ["?", "these keys"],
];

let page = null;  // what is shown: {name, run, details, ...}
let leave = () => {};

function words() { return Object.fromEntries(new URLSearchParams(location.hash.slice(1))); }

/** Goes to where the words say; `quietly` leaves no place to come back to. */
function go(next, quietly) {
  const kept = Object.entries(next).filter(([, value]) => known(value) && value !== "" && value !== "all");
  const hash = `#${new URLSearchParams(kept)}`;
  if (hash === location.hash) return;
  if (quietly) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  render();
}

async function render() {
  const where = words();
  try {
    if (!known(where.run)) {
      const runs = await source.runs();
      if (runs.length === 1) return go({ run: runs[0].id }, true);
      return drawRuns(runs);
    }
    if (!page || page.run !== where.run) await openRun(where.run);
    return await drawTab(where);
  } catch (error) {
    show(main, el("div", { class: "empty" }, error.message));
  }
}

// -- all runs ---------------------------------------------------------------------------------------------------

function drawRuns(runs) {
  leave();
  leave = () => {};
  page = { name: "runs", runs, at: 0 };
  document.title = "rollenv";
  drawTop([]);
  const line = (run, index) => el("tr", { "data-run": run.id, onclick: () => go({ run: run.id }) },
    el("td", {}, el("a", { href: `#${new URLSearchParams({ run: run.id })}` }, run.name)), el("td", {}, run.kind), el("td", {}, run.env || "–"),
    el("td", {}, run.kind === "evaluation" ? [run.agent, run.model].filter(Boolean).join(" with ") : run.model || "–"),
    el("td", {}, interval(run.success_rate, run.ci95)), el("td", { class: "number" }, figure(run.mean_reward)),
    el("td", { class: "number" }, figure(run.mean_turns)),
    el("td", { class: "number" }, run.kind === "evaluation" ? plural(run.episodes || 0, "episode") : `step ${whole(run.steps)} of ${whole(run.of_steps)}`));
  page.rows = runs.map(line);
  const heads = ["run", "kind", "environment", "who", "success (95% CI)", "reward", "turns", ""];
  show(main, el("div", { class: "page" }, el("table", { class: "runs", id: "runs" },
    el("thead", {}, el("tr", {}, heads.map((name) => el("th", {}, name)))), el("tbody", {}, page.rows))));
  markRun(0);
}

function markRun(at) {
  page.at = Math.max(0, Math.min(page.rows.length - 1, at));
  page.rows.forEach((row, index) => row.classList.toggle("chosen", index === page.at));
  page.rows[page.at].scrollIntoView({ block: "nearest" });
}

// -- one run ----------------------------------------------------------------------------------------------------

async function openRun(run) {
  leave();
  const details = await source.run(run);
  document.title = `${details.name} – rollenv`;
  page = { name: "run", run, details, steps: null };
  page.curves = new Curves(details);
  page.episode = new EpisodeView(run, (id) => go({ ...words(), view: "group", id }));
  page.list = new EpisodeList(run, (row) => go({ ...words(), id: row.id }, true), (query) => go({ ...words(), ...query }, true));
  const ends = [];
  if (details.kind === "training") ends.push(source.follow(run, news));
  const timer = source.live ? setInterval(refresh, 1000) : 0;
  leave = () => { ends.forEach((end) => end()); clearInterval(timer); };
}

/** New figures: the run has made a step. */
function news(steps) {
  page.steps = steps;
  page.fresh = true;
  if (tab(words()) === "curves") page.curves.draw(steps);
  drawRunTop(words());
}

/** While there is more to read, or the run goes on, the list and the counts follow. */
async function refresh() {
  const now = page, { list } = now;
  if (!list.search) return;
  if (!(list.progress && list.progress.reading) && !now.fresh) return;
  now.fresh = false;
  try {
    now.details = await source.run(now.run);
    if (page !== now) return;
    list.details = now.details;
    list.drawFilters();
    await list.reload();
    if (page === now && list.id === null && tab(words()) === "episodes") list.pick(0);
  } catch {
    now.fresh = true;  // the server is away for a moment: later
  }
}

const tab = (where) => where.tab || (page.details.counts.all || page.details.progress.reading || page.details.kind === "evaluation" ? "episodes" : "curves");

async function drawTab(where) {
  drawRunTop(where);
  const chosen = tab(where);
  const id = known(where.id) ? Number(where.id) : null;
  if (chosen === "curves") {
    show(main, page.curves.element);
    page.curves.draw(page.steps);
  } else if (chosen === "about") drawAbout();
  else if (where.view === "group" && id !== null) await drawGroup(main, page.run, id, (other) => go({ ...words(), view: "", id: other }));
  else {
    if (!main.contains(page.list.element)) page.list.show(main, page.episode.element);
    const query = Object.fromEntries(QUERY.filter((name) => known(where[name])).map((name) => [name, where[name]]));
    await Promise.all([page.list.open(page.details, query, id), id === null ? null : page.episode.open(id)]);
    if (!page.details.counts.all && !page.details.progress.reading) page.episode.blank(nothing());
  }
}

function nothing() {
  return page.details.kind === "training"
    ? "This run keeps no episodes. Train with trajectories=1 to keep those of every step, or trajectories=10 those of every tenth."
    : "This evaluation holds no episodes.";
}

function drawAbout() {
  const { summary, config, folder } = page.details;
  const lines = (value, name) => (value !== null && typeof value === "object" && !Array.isArray(value)
    ? Object.entries(value).flatMap(([key, inner]) => lines(inner, name ? `${name}.${key}` : key))
    : [[name, typeof value === "string" ? value : JSON.stringify(value)]]);
  const table = (title, value) => (Object.keys(value).length ? [el("h2", {}, title), el("table", { class: "facts" },
    el("tbody", {}, lines(value, "").map(([name, words]) => el("tr", {}, el("th", {}, name), el("td", {}, words))))), el("br")] : null);
  show(main, el("div", { class: "page", id: "about" }, folder ? el("p", { class: "dim" }, folder) : null, table("summary.json", summary), table("config.toml", config)));
}

function drawRunTop(where) {
  const chosen = tab(where), { details, steps } = page;
  const link = (name, title) => el("a", { href: `#${new URLSearchParams({ run: page.run, tab: name })}`, "aria-current": name === chosen ? "page" : null }, title);
  const last = steps && steps.length ? steps[steps.length - 1].step : null;
  const of = details.config.steps;
  const training = source.live && known(last) && of && last < of;
  drawTop([el("span", { class: "where" }, details.name), el("nav", {}, link("episodes", "episodes"), details.kind === "training" ? link("curves", "curves") : null, link("about", "about"))],
    known(last) ? el("span", { class: training ? "live dim" : "dim" }, `step ${whole(last)}${of ? ` of ${whole(of)}` : ""}`) : null);
}

function drawTop(inside, ...rest) {
  show(top_, el("a", { class: "brand", href: "#" }, "rollenv"), inside,
    el("span", { class: "rest" }, rest, el("button", { class: "small-button", onclick: openHelp, title: "keys" }, "?")));
  if (source.note && !document.getElementById("note")) top_.after(el("div", { class: "note", id: "note" }, source.note));
}

// -- keys -------------------------------------------------------------------------------------------------------

function openHelp() {
  show(help, el("h2", {}, "Keys"), el("table", {}, el("tbody", {}, KEYS.map(([keys, does]) => el("tr", {}, el("td", {}, keys.split(", ").map((key) => [el("kbd", {}, key), " "])), el("td", {}, does))))));
  help.showModal();
}

function next(names, now, first) { return names[(names.indexOf(now || first) + 1) % names.length]; }

const RUN_KEYS = {
  j: () => page.list.move(1), k: () => page.list.move(-1), J: () => page.list.move(10), K: () => page.list.move(-10),
  n: () => page.episode.goTo(page.episode.turn + 1), p: () => page.episode.goTo(page.episode.turn - 1),
  Enter: () => page.episode.element.focus(), c: () => page.episode.nextColour(), o: () => page.episode.unfold(),
  g: () => (words().id ? go({ ...words(), view: words().view ? "" : "group" }) : null),
  f: () => page.list.filter({ ...page.list.query, show: next(Object.keys(SHOW_NAMES).filter((name) => name === "all" || page.details.counts[name]), page.list.query.show, "all") }),
  s: () => page.list.filter({ ...page.list.query, sort: next(Object.keys(SORT_NAMES), page.list.query.sort, "order") }),
  "/": () => page.list.search.focus(),
};

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
  if (typing) {
    if (event.key === "Escape" || (event.key === "Enter" && document.activeElement.id === "search")) document.activeElement.blur();
    return;
  }
  if (event.key === "Enter" && ["A", "BUTTON", "SUMMARY"].includes(document.activeElement.tagName)) return;
  const does = action(event.key);
  if (does) {
    event.preventDefault();
    does();
  }
}

function action(name) {
  if (name === "?") return openHelp;
  if (!page) return null;
  if (page.name === "runs") {
    const moves = { j: 1, k: -1, J: 10, K: -10 };
    if (name in moves) return () => markRun(page.at + moves[name]);
    return name === "Enter" ? () => go({ run: page.runs[page.at].id }) : null;
  }
  const tabs = { e: "episodes", t: "curves", a: "about" };
  if (name in tabs && (name !== "t" || page.details.kind === "training")) return () => go({ ...words(), tab: tabs[name], view: "" });
  if (name === "r") return () => go({});
  if (name === "Escape") return back;
  const where = words();
  if (tab(where) !== "episodes" || (where.view && name !== "g")) return null;
  return RUN_KEYS[name] || null;
}

function back() {
  const where = words();
  if (where.view) go({ ...where, view: "" });
  else if (tab(where) !== "episodes" && page.details.counts.all) go({ ...where, tab: "" });
  else if (main.contains(document.activeElement) && document.activeElement !== main) main.focus();
  else go({});
}

document.addEventListener("keydown", key);
window.addEventListener("hashchange", render);
render();
