// The samples of one task side by side: a column each, a line for each turn. Where a sample first does something else than
// the first sample did, its turn is framed; what is the same up to there is pale.

async function drawGroup(place, run, id, open) {
  let episodes;
  try {
    ({ episodes } = await source.group(run, id));
  } catch (error) {
    show(place, el("div", { class: "empty" }, error.message));
    return;
  }
  const first = episodes[0];
  const longest = Math.max(...episodes.map((episode) => episode.turns.length));
  const parts = episodes.map((episode, n) => (n ? parting(first.turns, episode.turns) : -1));
  const solved = episodes.filter((episode) => outcome(episode)[0] === "good").length;
  show(place, el("div", { class: "group", id: "group" },
    el("div", { class: "headline" }, el("h1", {}, first.task), el("span", { class: "badge" }, `${solved} of ${episodes.length} successful`),
      known(first.step) ? el("span", { class: "badge" }, `step ${first.step}`) : null),
    el("details", {}, el("summary", { class: "dim" }, "the first observation"), el("div", { class: "text" }, first.turns.length ? first.turns[0].observation : "")),
    el("table", {},
      el("thead", {}, el("tr", {}, el("td", { class: "n" }), episodes.map((episode) => column(episode, open)))),
      el("tbody", {}, Array.from({ length: longest }, (_, turn) => el("tr", {}, el("td", { class: "n" }, String(turn + 1)),
        episodes.map((episode, n) => cell(episode.turns[turn], n && turn < parts[n], turn === parts[n]))))))));
}

/** The first turn in which two episodes act differently. */
function parting(a, b) {
  for (let turn = 0; turn < b.length; turn++) if (!a[turn] || a[turn].action !== b[turn].action) return turn;
  return -1;
}

function column(episode, open) {
  const [kind, words] = outcome(episode);
  return el("th", {},
    el("div", { class: "headline" }, el("a", { href: "#", onclick: (event) => { event.preventDefault(); open(episode.id); } }, `sample ${episode.sample}`),
      el("span", { class: `badge ${kind}` }, words), el("b", {}, reward(episode.reward)),
      known(episode.above) ? el("span", { class: "dim" }, signed(episode.above)) : null),
    el("div", { class: "dim" }, [plural(episode.turns.length, "turn"), episode.stop, episode.failure ? `${episode.failure.where}/${episode.failure.kind}` : null].filter(Boolean).join(" · ")));
}

function cell(turn, same, parted) {
  if (!turn) return el("td", { class: "gone" });
  return el("td", { class: `${same ? "same" : ""} ${parted ? "parted" : ""}` },
    el("div", { class: `action ${turn.valid_action ? "" : "invalid"}` }, turn.action || "(nothing)"),
    turn.reward ? el("span", { class: `badge ${turn.reward > 0 ? "good" : "bad"}` }, `reward ${signed(turn.reward)}`) : null,
    el("details", {}, el("summary", {}, "observation, completion"), el("div", { class: "text" }, turn.observation),
      turn.completion ? el("div", { class: "text" }, el("span", { class: "wrote" }, turn.completion)) : null));
}
