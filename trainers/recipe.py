"""The recipe of a seed policy: an expert's episodes, a tokenizer, a small model, imitation, and how good it became."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollenv.agents import chat_agent, make_agent
from rollenv.config.imitate import ImitateConfig
from rollenv.config.rollout import RolloutConfig, SamplingConfig
from rollenv.errors import RollenvError
from rollenv.evaluation.evaluate import play_panel, summarize
from rollenv.files import new_folder
from rollenv.inference.chat import ChatFormat
from rollenv.registration import spec
from rollenv.rollout.controller import stream
from rollenv.rollout.groups import GroupRequest
from rollenv.rollout.play import DemonstrationPlay, ModelPlay
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.setup import env_pool, episode_limits, model_engine, sampling_params
from rollenv.seeding import TaskOrder, derive_seed
from rollenv.trainers.device import choose_device
from rollenv.trainers.imitate import Demonstration, ImitateSettings, imitate
from rollenv.trainers.policy import Policy, load_model, n_parameters
from rollenv.trainers.scratch import ScratchShape, new_model, train_tokenizer
from rollenv.trajectory import StopReason, Trajectory

OnFigures = Callable[[str, dict[str, Any]], None]
"""Called with ("play" | "learn" | "eval", figures) as the work goes."""


class ImitationRun:
    """Imitates `config.expert` and leaves a `transformers` folder in `<out>/model`.

    Args:
        config: `config.out` must be set.
        on_figures: gets figures as they come.
    """

    def __init__(self, config: ImitateConfig, on_figures: OnFigures = lambda kind, figures: None) -> None:
        if config.out is None:
            raise ValueError("an imitation needs config.out")
        self.config, self._on_figures = config, on_figures
        self.folder = Path(config.out)
        self.spec = spec(config.env)
        acting = config.agent
        self.agent = chat_agent(make_agent(self.spec, acting.name, acting.arguments), acting.name)
        make_agent(self.spec, config.expert.name, config.expert.arguments)  # refused early if it cannot be made
        self._rollout = RolloutConfig(concurrency=64, max_turns=config.max_turns)  # type: ignore[call-arg]
        self._limits = episode_limits(self._rollout, self.spec)
        self._pool = env_pool(self.spec, config.env_args, self._rollout)
        self.tasks = self._pool.tasks

    def run(self) -> dict[str, Any]:
        """Plays, learns, saves, evaluates. Returns the figures.

        Raises:
            RollenvError: episodes fail and fail, or the result cannot be written.
        """
        try:
            return self._run()
        finally:
            self._pool.close()

    def _run(self) -> dict[str, Any]:
        config = self.config
        device = choose_device(config.device, config.threads)
        policy = self._policy(device)
        context = int(policy.model.config.max_position_embeddings)
        self._limits = episode_limits(self._rollout, self.spec, context)
        demonstrations, expert_success = self._demonstrations(policy.chat)
        demonstrations = [d for d in demonstrations if len(d.ids) <= context]
        if not demonstrations:
            raise RollenvError(
                f"agent '{config.expert.name}' left nothing to imitate in {config.episodes} episodes of "
                f"'{self.spec.name}': all failed or were longer than the model's {context} positions"
            )
        settings = ImitateSettings(
            epochs=config.epochs,
            batch=config.batch,
            optimizer=config.optimizer,
            lr=config.lr,
            schedule=config.schedule,
            warmup=config.warmup,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            observation_weight=config.observation_weight,
            microbatch_tokens=config.microbatch_tokens,
            seed=derive_seed(config.seed, "order"),
        )
        learned = imitate(policy, demonstrations, settings, lambda figures: self._on_figures("learn", figures))
        self._save(policy)
        return {
            "parameters": n_parameters(policy.model),
            "vocabulary": len(policy.tokenizer),
            "episodes": config.episodes,
            "expert_success": expert_success,
            "tokens_per_episode": sum(len(d.ids) for d in demonstrations) / max(1, config.episodes),
            "loss": learned["loss"],
            "action_loss": learned["action_loss"],
            **asyncio.run(self.evaluate(policy, device)),
        }

    def _policy(self, device: str) -> Policy:
        config = self.config
        if config.model != "scratch":
            return Policy.load(config.model, device, config.precision)
        texts: list[str] = [str(getattr(self.agent, "system", ""))]
        self._play(min(config.tokenizer_episodes, config.episodes), None, texts.append)
        tokenizer = train_tokenizer(texts, config.shape.vocabulary, config.shape.numbers)
        shape = ScratchShape(**config.shape.model_dump())
        model = new_model(shape, tokenizer, derive_seed(config.seed, "weights"))
        return Policy.of(model, tokenizer, device, config.precision)

    def _demonstrations(self, chat: ChatFormat) -> tuple[list[Demonstration], float]:
        """What the expert's episodes leave to imitate, in the order of the tasks, and how often it succeeded."""
        played: dict[int, list[Demonstration]] = {}
        successes = 0

        def keep(trajectory: Trajectory) -> None:
            nonlocal successes
            successes += bool(trajectory.success)
            played[trajectory.group] = [Demonstration.of(segment) for segment in trajectory.segments()]

        self._play(self.config.episodes, chat, keep=keep)
        return [d for group in sorted(played) for d in played[group]], successes / max(1, len(played))

    def _play(
        self,
        episodes: int,
        chat: ChatFormat | None,
        on_text: Callable[[str], None] = lambda text: None,
        keep: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        """Plays so many episodes; `keep` gets those that did not fail, as they end."""
        config = self.config
        play = DemonstrationPlay(
            self._pool,
            self.spec.id,
            lambda: make_agent(self.spec, config.expert.name, config.expert.arguments),
            self.agent,
            chat,
            self._limits,
            on_text,
        )
        order = TaskOrder(self.tasks.ids(config.split), derive_seed(config.seed, "tasks"))
        seed = derive_seed(config.seed, "demonstrations")

        async def play_all() -> None:
            scheduler = Scheduler(play, concurrency=16)
            requests = [GroupRequest(index, order[index], 1, seed) for index in range(episodes)]
            try:
                async for group in stream(scheduler, requests, lambda n: self._played(n, episodes)):
                    for trajectory in group.trajectories:
                        if trajectory.stop is not StopReason.FAILED:
                            keep(trajectory)
            finally:
                await scheduler.close()

        asyncio.run(play_all())

    def _played(self, finished: int, total: int) -> None:
        if finished % 50 == 0 or finished == total:
            self._on_figures("play", {"step": finished, "total": total})

    def _save(self, policy: Policy) -> None:
        try:
            with new_folder(self.folder / "model") as temporary:
                policy.save(temporary)
        except Exception as error:  # each library has its own class for a full disk
            raise RollenvError(f"cannot write the model to '{self.folder}': {error!s:.200}") from error

    async def evaluate(self, policy: Policy, device: str) -> dict[str, Any]:
        """Plays the test panel with the model as it was saved."""
        config = self.config
        model, tokenizer = load_model(self.folder / "model")
        engine = model_engine(model, tokenizer, device, self._rollout)
        panel = self.tasks.panel(config.eval.split, min(config.eval.episodes, len(self.tasks.ids(config.eval.split))))
        settings = SamplingConfig(max_tokens=config.max_tokens)  # type: ignore[call-arg]
        sampling = sampling_params(settings, policy.chat, config.eval.temperature)
        play = ModelPlay(self._pool, self.spec.id, self.agent, engine, policy.chat, sampling, self._limits, "eval")
        try:
            trajectories = await play_panel(play, panel, derive_seed(config.seed, "eval"), self._rollout.concurrency)
        finally:
            await engine.close()
        summary = summarize(self.spec.id, panel, trajectories)
        figures = {
            "eval_success": summary.success_rate,
            "eval_ci95": list(summary.ci95),
            "eval_reward": summary.mean_reward,
            "eval_tasks_sha256": summary.tasks_sha256,
        }
        self._on_figures("eval", figures)
        return figures
