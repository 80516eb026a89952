// One episode, turn by turn.

const COLOURS = { plain: "plain", logprob: "log-probability", advantage: "advantage", version: "policy version", source: "source" };
const HUES = [210, 30, 140, 320, 60, 270, 180, 0];
const colouring = { by: "logprob", open: false };

/** How unlikely a token was, as a colour behind it: clear for a certain one, full from a probability of 0.7% on. */
const heat = (logprob) => `rgba(var(--heat), ${Math.min(1, Math.max(0, -logprob / 5)).toFixed(3)})`;
/** What a token trained with: green above nothing, red below, full for the farthest of the episode. */
const credit = (advantage, farthest) => `rgba(var(${advantage < 0 ? "--loss" : "--gain"}), ${(0.6 * Math.abs(advantage) / (farthest || 1)).toFixed(3)})`;
const hue = (version) => `hsla(${HUES[Math.abs(version) % HUES.length]}, 65%, 50%, .26)`;

class EpisodeView {
  constructor(run, compare) {
    Object.assign(this, { run, compare, episode: null, turn: 0 });
    this.element = el("section", { class: "detail", id: "episode", tabindex: "-1", "aria-label": "episode" });
    this.blank("Choose an episode: j and k move through the list, ? shows all keys.");
  }

  blank(words) {
    this.episode = null;
    show(this.element, el("div", { class: "empty" }, words));
  }

  async open(id) {
    this.wanted = id;  // what is still on its way is no longer wanted, even if this one is shown already
    if (this.episode && this.episode.id === id) return;
    try {
      const episode = await source.episode(this.run, id);
      if (this.wanted !== id) return;
      Object.assign(this, { episode, turn: 0 });
      this.element.scrollTop = 0;
      this.draw();
    } catch (error) {
      if (this.wanted === id) this.blank(error.message);
    }
  }

  draw() {
    const { episode } = this;
    // The advantage farthest from 0, without its sign.
    this.farthest = episode.turns.flatMap((turn) => turn.advantages).reduce((most, one) => Math.max(most, Math.abs(one)), 0);
    this.turns = episode.turns.map((turn, index) => this.drawTurn(turn, index));
    this.strip = el("span", { class: "strip" }, episode.turns.map((turn, index) => el("button", {
      class: `${turn.reward > 0 ? "good" : ""} ${turn.valid_action ? "" : "invalid"}`, onclick: () => this.goTo(index),
      title: `turn ${index + 1}${turn.valid_action ? "" : ", invalid action"}${turn.reward ? `, reward ${reward(turn.reward)}` : ""}`,
    }, String(index + 1))));
    show(this.element, el("div", { class: "inner" }, this.head(), this.tools(), this.turns,
      episode.turns.length ? null : el("p", { class: "dim" }, "It ended before its first turn.")));
    this.mark();
  }

  head() {
    const { episode } = this;
    const [kind, words] = outcome(episode);
    const fact = (name, value) => (known(value) && value !== "" ? el("span", {}, `${name} `, el("b", {}, value)) : null);
    const tokens = episode.turns.reduce((n, turn) => n + turn.completion_tokens, 0);
    const spent = episode.turns.flatMap((turn) => Object.values(turn.seconds));
    const info = Object.keys(episode.info).length ? JSON.stringify(episode.info, null, 1) : "";
    const { failure } = episode;
    return [
      el("div", { class: "headline" }, el("h1", {}, episode.task), el("span", { class: `badge ${kind}` }, words),
        el("span", { class: "badge" }, `reward ${reward(episode.reward)}`),
        known(episode.above) ? el("span", { class: "badge" }, `${signed(episode.above)} against its group`) : null,
        episode.trained === true ? el("span", { class: "badge" }, "trained") : null,
        episode.trained === false ? el("span", { class: "badge warn" }, "not trained") : null,
        el("button", { class: "small-button", onclick: () => this.compare(episode.id) }, "compare its group (g)")),
      el("div", { class: "facts-line" }, fact("env", episode.env), fact("step", episode.step), fact("group", episode.group),
        fact("sample", episode.sample), episode.attempt ? fact("attempt", episode.attempt + 1) : null, fact("ended by", episode.stop),
        fact("seed", episode.seed), tokens ? fact("sampled", plural(tokens, "token")) : null,
        spent.length ? fact("took", seconds(spent.reduce((a, b) => a + b, 0))) : null),
      failure ? el("div", { class: "failure" }, `${failure.where}/${failure.kind}`
        + (known(failure.turn) ? `, turn ${failure.turn + 1}` : "") + (failure.injected ? `, injected: ${failure.injected}` : "")
        + (failure.collateral ? ", broken by another episode" : "") + `\n${failure.message}`) : null,
      info ? el("details", { class: "dim" }, el("summary", {}, "what else the environment said in the end"), el("div", { class: "text" }, info)) : null,
    ];
  }

  tools() {
    const { episode } = this;
    const can = {
      plain: true,
      logprob: episode.turns.some((turn) => turn.pieces && turn.logprobs.length),
      advantage: episode.turns.some((turn) => turn.pieces && turn.advantages.length),
      version: episode.turns.some((turn) => turn.pieces && turn.versions.length),
      source: episode.turns.some((turn) => turn.prompt !== null),
    };
    const now = can[colouring.by] ? colouring.by : "plain";
    const buttons = Object.entries(COLOURS).map(([name, words]) => el("button", {
      "aria-pressed": String(name === now), disabled: !can[name], title: can[name] ? null : "the tokenizer, or what it would show, is not at hand",
      onclick: () => this.colour(name),
    }, words));
    this.colours = Object.keys(can).filter((name) => can[name]);
    return el("div", { class: "tools" }, this.strip, can.logprob || can.advantage || can.version || can.source ? el("span", { class: "segments" }, buttons) : null,
      this.legend(now));
  }

  legend(now) {
    if (now === "logprob") {
      const scale = el("i");
      scale.style.background = "linear-gradient(90deg, rgba(var(--heat), 0), rgba(var(--heat), 1))";
      return el("span", { class: "legend" }, "certain", scale, "p ≤ 0.7%");
    }
    if (now === "advantage") {
      const scale = el("i");
      scale.style.background = `linear-gradient(90deg, ${credit(-1, 1)}, transparent, ${credit(1, 1)})`;
      return el("span", { class: "legend" }, signed(-this.farthest), scale, signed(this.farthest));
    }
    if (now === "version") {
      const versions = [...new Set(this.episode.turns.flatMap((turn) => turn.versions))].sort((a, b) => a - b);
      return el("span", { class: "legend" }, "version", versions.map((version) => {
        const one = el("span", {}, String(version));
        one.style.background = hue(version);
        return one;
      }));
    }
    return now === "source" ? el("span", { class: "legend text" }, el("span", { class: "read" }, "read"), el("span", { class: "wrote" }, "sampled")) : null;
  }

  colour(name) {
    colouring.by = name;
    const top = this.element.scrollTop;
    this.draw();
    this.element.scrollTop = top;
  }

  nextColour() {
    if (this.episode && this.colours.length > 1) this.colour(this.colours[(this.colours.indexOf(colouring.by) + 1) % this.colours.length]);
  }

  drawTurn(turn, index) {
    const times = Object.entries(turn.seconds).map(([part, s]) => `${part} ${seconds(s)}`).join(" · ");
    const shared = this.episode.shared[index];
    const marks = [
      turn.reward ? el("span", { class: `badge ${turn.reward > 0 ? "good" : "bad"}` }, `reward ${signed(turn.reward)}`) : null,
      turn.valid_action ? null : el("span", { class: "badge bad" }, "invalid action"),
      turn.fork ? el("span", { class: "badge", title: "the prompt is no extension of the last one" }, "fork") : null,
      known(shared) ? el("span", { class: "badge" }, `played by sample ${shared}`) : null,
      turn.branch_returns.length ? el("span", { class: "badge" }, `branches: ${turn.branch_returns.map(reward).join(", ")}`) : null,
    ];
    const source = colouring.by === "source" && turn.prompt !== null;
    const tokens = turn.completion_tokens ? plural(turn.completion_tokens, "token") : "";
    const parts = source
      ? [part("read and sampled", `${plural(turn.prompt_tokens, "token")} + ${tokens}`,
        text(el("span", { class: "read" }, turn.prompt), el("span", { class: "wrote" }, (turn.pieces || [turn.completion]).join(""))))]
      : [part("observation", turn.prompt_tokens ? `${plural(turn.prompt_tokens, "token")} read` : "", text(turn.observation)),
        turn.completion || turn.pieces ? part("completion", tokens, completion(turn, this.farthest)) : null];
    const same = !source && turn.completion.trim() === turn.action.trim() && !turn.pieces;
    return el("article", { class: "turn", "data-turn": index }, el("div", { class: "n" }, String(index + 1)), el("div", { class: "body" },
      same ? parts.slice(0, 1) : parts,
      el("div", { class: "part" }, el("div", { class: "label" }, el("span", {}, "action"), el("span", {}, times)),
        el("div", { class: "row" }, el("span", { class: `action ${turn.valid_action ? "" : "invalid"}` }, turn.action || "(nothing)"), marks))));
  }

  goTo(index) {
    if (!this.episode || !this.turns.length) return;
    this.turn = Math.max(0, Math.min(this.turns.length - 1, index));
    this.mark();
    this.turns[this.turn].scrollIntoView({ block: "start" });
  }

  mark() {
    for (const all of [this.turns, [...this.strip.children]]) all.forEach((each, index) => each.classList.toggle("chosen", index === this.turn));
  }

  unfold() {
    colouring.open = !colouring.open;
    if (this.episode) this.draw();
  }
}

function part(name, beside, body) {
  return el("div", { class: "part" }, el("div", { class: "label" }, el("span", {}, name), el("span", {}, beside)), body);
}

/** A text that shows its beginning when it is long. */
function text(...inside) {
  const body = el("div", { class: "text" }, inside);
  if (colouring.open || (body.textContent.length < 900 && body.textContent.split("\n").length <= 9)) return body;
  body.classList.add("clamped");
  const more = el("button", { class: "more", onclick: () => { more.textContent = body.classList.toggle("clamped") ? "show all" : "show less"; } }, "show all");
  return el("div", {}, body, more);
}

/** What the model wrote: its tokens, coloured, or the bare text where they are not known. */
function completion(turn, farthest) {
  if (!turn.pieces || !["logprob", "advantage", "version"].includes(colouring.by)) return text(turn.pieces ? turn.pieces.join("") : turn.completion);
  return text(turn.pieces.map((piece, i) => {
    const logprob = turn.logprobs[i], version = turn.versions[i], advantage = turn.advantages[i];
    const facts = [known(logprob) ? `log p ${logprob.toFixed(3)}, p ${percent(Math.exp(logprob))}` : null,
      known(advantage) ? `advantage ${signed(advantage)}` : null, known(version) ? `version ${version}` : null];
    const token = el("span", { class: "token", title: facts.filter(Boolean).join("; ") }, piece);
    if (colouring.by === "version" && known(version)) token.style.backgroundColor = hue(version);
    if (colouring.by === "advantage" && known(advantage)) token.style.backgroundColor = credit(advantage, farthest);
    if (colouring.by === "logprob" && known(logprob)) token.style.backgroundColor = heat(logprob);
    return token;
  }));
}
