// Where the page's answers come from: the server, or this very file. Both answer the same questions.

const embedded = JSON.parse(document.getElementById("data").textContent);

const remote = {
  live: true,
  note: "",
  async ask(path, words) {
    const known = Object.entries(words || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const answer = await fetch(`api/${path}?${new URLSearchParams(known)}`);
    const found = await answer.json().catch(() => ({ error: `the server said ${answer.status}` }));
    if (!answer.ok) throw new Error(found.error || `the server said ${answer.status}`);
    return found;
  },
  runs() { return this.ask("runs"); },
  run(run) { return this.ask("run", { run }); },
  episodes(run, query, offset, limit) { return this.ask("episodes", { run, ...query, offset, limit }); },
  episode(run, id) { return this.ask("episode", { run, id }); },
  group(run, id) { return this.ask("group", { run, id }); },
  /** Calls `on(figures)` with all steps whenever there are new ones; returns what ends that. */
  follow(run, on) {
    let steps = [];
    const events = new EventSource(`api/events?${new URLSearchParams({ run })}`);
    events.addEventListener("anew", () => { steps = []; });
    events.addEventListener("figures", (event) => { steps = steps.concat(JSON.parse(event.data)); on(steps); });
    return () => events.close();
  },
};

// The filters of rollenv/viewer/index.py (SHOW and SORT) once more, for a file that has no server behind it.
const SHOWN = {
  all: () => true,
  successful: (row) => row.success === 1 && row.stop !== "failed",
  unsuccessful: (row) => row.success !== 1 && !["failed", "aborted"].includes(row.stop),
  failed: (row) => row.stop === "failed",
  limit: (row) => ["max_turns", "max_tokens", "truncated"].includes(row.stop),
  invalid: (row) => row.invalid > 0,
};
const by = (key) => (row) => (row[key] === null ? -Infinity : row[key]);
const ORDER = {
  order: (row) => -row.id, newest: (row) => row.id, turns: by("turns"), tokens: by("tokens"), seconds: by("seconds"),
  reward: by("reward"), low: (row) => (row.reward === null ? Infinity : -row.reward), above: by("above"),
};

const file = {
  live: false,
  note: embedded ? embedded.note : "",
  one(run) {
    const found = embedded.runs.find((each) => each.details.id === run);
    if (!found) throw new Error(`there is no run '${run}' in this file`);
    return found;
  },
  async runs() { return embedded.runs.map((each) => each.details); },
  async run(run) { return this.one(run).details; },
  async episodes(run, query, offset, limit) {
    const words = (query.text || "").toLowerCase().split(/\s+/).filter(Boolean);
    const has = (row, word) => row.task.toLowerCase().includes(word) || row.about.toLowerCase().includes(word);
    const value = ORDER[query.sort || "order"];
    const rows = this.one(run).rows.filter((row) =>
      SHOWN[query.show || "all"](row) && words.every((word) => has(row, word))
      && (!known(query.step) || query.step === "" || row.step === Number(query.step)));
    rows.sort((a, b) => (value(b) === value(a) ? a.id - b.id : value(b) > value(a) ? 1 : -1));
    const progress = { reading: false, bytes: 0, total: 0, problem: "" };
    return { rows: rows.slice(offset, offset + limit), total: rows.length, offset, progress };
  },
  async episode(run, id) {
    const found = this.one(run).episodes.find((each) => each.id === Number(id));
    if (!found) throw new Error("this episode is not among those in this file");
    return found;
  },
  async group(run, id) {
    const one = await this.episode(run, id);
    const same = (each) => each.step === one.step && each.group === one.group && each.task === one.task;
    return { episodes: this.one(run).episodes.filter(same) };
  },
  follow(run, on) { on(this.one(run).metrics); return () => {}; },
};

const source = embedded === null ? remote : file;
