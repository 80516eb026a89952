// The list of episodes. Only the rows that can be seen exist, and only the pages that they are on are asked for: a run
// of 100,000 episodes costs no more than one of 100.

const ROW = 46;
const PAGE = 50;
const SHOW_NAMES = {
  all: "all", successful: "successful", unsuccessful: "unsuccessful", failed: "failed", limit: "cut off", invalid: "invalid actions",
};
const SORT_NAMES = {
  order: "as played", newest: "latest first", turns: "longest: turns", tokens: "longest: tokens", seconds: "longest: time",
  reward: "highest reward", low: "lowest reward", above: "most above its group",
};

class EpisodeList {
  /** `choose(row)` is called with the row of an episode that was picked; `filter(query)` with another query. */
  constructor(run, choose, filter) {
    Object.assign(this, { run, choose, filter, query: {}, pages: new Map(), total: 0, at: -1, id: null });
    this.inner = el("div");
    this.scroller = el("div", { class: "scroll", id: "list", onscroll: () => this.scrolled() }, this.inner);
    this.filters = el("div", { class: "filters" });
    this.status = el("div", { class: "count", id: "count" });
    this.element = el("section", { class: "side", "aria-label": "episodes" }, this.filters, this.scroller, this.status);
  }

  /** Shows the episodes of a query. The chosen one stays chosen if it is on the first page of them, else the first one
   * is; at the beginning the one that the address names is, wherever it may be. */
  async open(details, query, id) {
    this.id = id;
    this.details = details;
    const begun = this.search === undefined;
    const changed = JSON.stringify(query) !== JSON.stringify(this.query);
    if (!begun && !changed) return this.draw();
    this.query = query;
    this.drawFilters();
    this.at = -1;
    this.scroller.scrollTop = 0;
    await this.reload();
    const first = this.pages.get(0) || [];
    const gone = begun ? id === null : !first.some((row) => row.id === id);
    if (this.query === query && gone && first.length) await this.pick(0);
  }

  /** Puts the list into `place`, where it stood when it was last there. */
  show(place, beside) {
    const top = this.top || 0;
    show(place, el("div", { class: "split" }, this.element, beside));
    this.scroller.scrollTop = top;
  }

  scrolled() {
    if (!this.element.isConnected) return;
    this.top = this.scroller.scrollTop;
    this.draw();
  }

  drawFilters() {
    const { counts, kept_steps: steps } = this.details;
    const set = (changes) => this.filter({ ...this.query, ...changes });
    let typing = 0;
    const typed = (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => set({ text: event.target.value }), 150);
    };
    const chip = (show) => counts[show] || show === "all" || this.query.show === show
      ? el("button", { class: "chip", "aria-pressed": String((this.query.show || "all") === show), onclick: () => set({ show }) },
        SHOW_NAMES[show], el("span", { class: "n" }, whole(counts[show])))
      : null;
    const option = (value, name, now) => el("option", { value, selected: value === now }, name);
    const sort = el("select", { "aria-label": "order", onchange: (event) => set({ sort: event.target.value }) },
      Object.entries(SORT_NAMES).map(([value, name]) => option(value, name, this.query.sort || "order")));
    const step = steps.length < 2 ? null : el("select", { "aria-label": "step", onchange: (event) => set({ step: event.target.value }) },
      option("", "all steps", this.query.step || ""), steps.map((n) => option(String(n), `step ${n}`, this.query.step)));
    if (!this.search) this.search = el("input", { type: "search", id: "search", placeholder: "search tasks  ( / )", oninput: typed, "aria-label": "search" });
    if (document.activeElement !== this.search) this.search.value = this.query.text || "";
    const chips = el("div", { class: "row" }, Object.keys(SHOW_NAMES).map(chip));
    if (this.filters.childElementCount) {  // the field that is being typed in stays where it is
      this.filters.children[1].replaceWith(el("div", { class: "row" }, sort, step));
      this.filters.children[2].replaceWith(chips);
    } else this.filters.append(el("div", { class: "row" }, this.search), el("div", { class: "row" }, sort, step), chips);
  }

  /** Asks again for what can be seen: after another query, or while the index grows. */
  async reload() {
    const query = this.query;
    const first = Math.floor(this.scroller.scrollTop / ROW / PAGE);
    const found = await source.episodes(this.run, query, first * PAGE, PAGE);
    if (query !== this.query) return;
    this.pages = new Map([[first, found.rows]]);
    this.take(found);
    this.draw();
  }

  take(found) {
    this.total = found.total;
    this.progress = found.progress;
    this.inner.style.height = `${ROW * this.total}px`;
    const { progress } = found;
    const torn = this.details.counts.torn;
    show(this.status,
      el("span", {}, plural(found.total, "episode")),
      progress.reading && progress.total ? el("span", {}, `reading: ${percent(progress.bytes / progress.total)}`) : null,
      torn ? el("span", { class: "badge warn" }, `${plural(torn, "line")} torn`) : null,
      progress.problem ? el("span", { class: "badge bad" }, progress.problem) : null);
  }

  async page(n) {
    if (!this.pages.has(n)) {
      const query = this.query;
      this.pages.set(n, null);
      const found = await source.episodes(this.run, query, n * PAGE, PAGE);
      if (query !== this.query) return [];
      this.pages.set(n, found.rows);
      this.take(found);
      this.draw();
    }
    return this.pages.get(n);
  }

  row(index) {
    const page = this.pages.get(Math.floor(index / PAGE));
    return page ? page[index % PAGE] : undefined;
  }

  draw() {
    const top = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 4);
    const end = Math.min(this.total, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / ROW) + 4);
    const rows = [];
    const begun = common([...this.pages.values()].flatMap((page) => page || []).map((row) => row.about));
    for (let index = top; index < end; index++) {
      const row = this.row(index);
      if (row) rows.push(this.item(row, index, begun));
      else this.page(Math.floor(index / PAGE)).catch(() => {});
    }
    show(this.inner, rows);
  }

  item(row, index, begun) {
    if (row.id === this.id) this.at = index;
    const [kind, words] = outcome(row);
    const under = [
      known(row.step) ? `step ${row.step}` : null, `#${row.group}.${row.sample}`, plural(row.turns, "turn"),
      row.tokens ? `${whole(row.tokens)} tok` : null, known(row.seconds) ? seconds(row.seconds) : null,
      row.failure || (["terminated", "failed"].includes(row.stop) ? null : row.stop),
      row.invalid ? `${row.invalid} invalid` : null,
    ].filter(Boolean).join(" · ");
    const item = el("div", {
      class: `item ${kind} ${row.id === this.id ? "chosen" : ""}`, title: `${words}: ${row.task}`, "data-id": row.id,
      onclick: () => this.pick(index),
    },
    el("div", { class: "line" }, el("span", { class: "what" }, (begun ? `… ${row.about.slice(begun)}` : row.about) || row.task), el("span", { class: "number" }, reward(row.reward))),
    el("div", { class: "line under" }, el("span", { class: "what" }, row.about ? row.task : ""), el("span", { class: "what" }, under)));
    item.style.top = `${ROW * index}px`;
    return item;
  }

  async pick(index) {
    if (index < 0 || index >= this.total) return;
    this.at = index;
    const top = ROW * index;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW - clientHeight;
    await this.page(Math.floor(index / PAGE));
    const row = this.row(index);
    if (!row || this.at !== index) return;
    this.id = row.id;
    this.draw();
    this.choose(row);
  }

  move(by) { return this.pick(Math.max(0, Math.min(this.total - 1, this.at + by))); }
}

/** How many characters all of these texts begin with, up to the beginning of a word; 0 where that is not worth leaving
 * out. */
function common(texts) {
  const different = [...new Set(texts)];
  if (different.length < 2) return 0;
  let n = 0;
  while (n < different[0].length && different.every((each) => each[n] === different[0][n])) n += 1;
  n = different[0].lastIndexOf(" ", n - 1) + 1;
  return n > 12 ? n : 0;
}
