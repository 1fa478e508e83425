"""Text in, text out: a target, its drafters and conversations over them.

Invariant: one answer at a time uses a runtime's caches. A second caller gets `Busy`, never a torn
cache, and closing is safe from any thread, in a signal handler, and any number of times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from edgespec.adaptive import AdaptivePlanner
from edgespec.backends import LoadOptions, OnLoad, load_model
from edgespec.chat import (
    FALLBACK_TEMPLATE,
    ChatTemplate,
    Message,
    encode_chat,
    fallback_template,
)
from edgespec.conversation import Conversation
from edgespec.costs import Costs
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import LookupDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ConfigError, ContextFull, ModelError
from edgespec.generation import DEFAULT_MAX_TOKENS, Engine, Generation, Result
from edgespec.logprobs import LogprobsRequest
from edgespec.native_use import call_holding
from edgespec.opening import (
    AUTO,
    check_drafter,
    check_target,
    find_files,
    load_drafter,
    make_planner,
    options_by_file,
    rounding_notes,
)
from edgespec.options import check_lookahead
from edgespec.planner import FixedPlanner, Planner, PlannerStatus
from edgespec.registry import LOOKUP
from edgespec.sampling import SamplingParams
from edgespec.session import CachedSession, CancelFlag, Model
from edgespec.timing import OnPass

if TYPE_CHECKING:
    from edgespec.fetch import OnFetch


class Runtime:
    """A target with its drafters, loaded and ready.

    >>> with Runtime.open("smollm2") as runtime:      # doctest: +SKIP
    ...     chat = runtime.conversation()
    ...     for chunk in chat.send("Why is the sky blue?"):
    ...         print(chunk.text, end="")

    Attributes:
        target: the model whose distribution the text has.
        drafters: what drafts for it, by name.
        notes: sentences to read before anything is asked: a GPU that isn't used, a model that
            can't speculate.
    """

    def __init__(
        self,
        target: Model,
        drafters: Sequence[Drafter] = (),
        *,
        planner: Planner | None = None,
        cancel: CancelFlag | None = None,
        notes: Sequence[str] = (),
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over loaded models; `Runtime.open` is the usual way.

        `planner` None tries the drafters in order with a lookahead of 3. `cancel` is the flag that
        the models were loaded with: without it a cancelled answer stops behind the pass that it is
        in. `notes` are sentences the user should read; `self.notes` adds those of the models.
        `on_close` is called once, when the models are about to be freed. Raises ConfigError where
        two drafters have the same name or the target can only draft, and ModelError where a model
        can't draft for this target; whoever loaded the models then closes them.
        """
        check_target(target)
        for drafter in drafters:
            if isinstance(drafter, ModelDrafter):
                check_drafter(target, drafter.model)
        self._on_close = on_close
        models = [target, *(d.model for d in drafters if isinstance(d, ModelDrafter))]
        told = [note for model in models for note in model.notes]
        self.notes = list(dict.fromkeys([*told, *notes]))  # two models may say the same
        if not target.session.can_rollback:
            for drafter in drafters:
                drafter.close()
            drafters, planner = (), None
        self.target = target
        self.drafters = {drafter.name: drafter for drafter in drafters}
        if len(self.drafters) < len(drafters):
            names = ", ".join(drafter.name for drafter in drafters)
            raise ConfigError(f"two drafters have the same name ({names}): give each its own")
        self._template = self._chat_template()
        self._freeing = threading.RLock()  # who comes second waits for the first
        self._first = threading.Lock()  # taken for good by whoever calls `on_close`
        self._engine = Engine(
            CachedSession(target.session),
            target.tokenizer,
            self.drafters,
            planner or FixedPlanner(tuple(self.drafters), 3),
            cancel or CancelFlag(),
        )

    @classmethod
    def open(
        cls,
        pair: str | None = None,
        *,
        target: Path | str | None = None,
        drafters: Sequence[str] | None = None,
        lookahead: int | Literal["auto"] = AUTO,
        context_size: int | None = None,
        threads: int | None = None,
        gpu_layers: int | None = None,
        device: str = "auto",
        allow_cpu: bool = False,
        fetch: bool = True,
        measure_again: bool = False,
        report: Callable[[str], None] = lambda _: None,
        on_pass: OnPass = lambda *_: None,
        on_load: OnLoad = lambda *_: None,
        on_fetch: OnFetch = lambda *_: None,
    ) -> Self:
        """Load a pair of the registry by name (None: the default pair), or model files.

        Args:
            pair: a name that `edgespec models` lists.
            target: a model file instead of a pair.
            drafters: "lookup" and one model, which is "model" (the pair's that drafts) or a model
                file, tried in this order; None takes the pair's own, or "lookup" beside a `target`
                file. An empty list is plain decoding.
            lookahead: draft tokens a round, 64 at most; 0 is plain decoding; "auto" measures what
                passes cost on this machine, once in the time of some 40 tokens, and then plans each
                round.
            context_size: tokens the target's cache holds; None takes the model's own size, at most
                8192.
            threads: CPU threads; None takes the CPUs this process may use.
            gpu_layers: layers of GGUF models on the GPU; None takes all where the build can.
            device: "auto", or what to run on: see `LoadOptions`.
            allow_cpu: whether the CPU may stand in for a `device` that can't be had.
            fetch: whether models that aren't here yet may be downloaded.
            measure_again: whether "auto" measures although it did before.
            report: told in a sentence what is being waited for.
            on_pass: told of each pass that is measured: its kind, tokens and seconds. Both may
                raise to stop.
            on_load: told every 0.1 s of a GGUF file that is being read: its name, and how much of
                it, from 0 to 1. It may raise to stop.
            on_fetch: told of each model that is downloaded or compared with its SHA-256: its name,
                bytes done and bytes in all (None: unknown). It may raise to stop.

        Raises:
            EdgespecError: one sentence on what doesn't work: an unknown pair, a damaged file,
                a drafter with other tokens, a download that failed.
        """
        if pair is not None and target is not None:
            raise ConfigError("give a pair or a target file, not both")
        if lookahead != AUTO:
            check_lookahead(lookahead)
        if isinstance(drafters, str):
            drafters = [drafters]
        options = LoadOptions(
            context_size,
            threads=threads,
            gpu_layers=gpu_layers,
            device=device,
            allow_cpu=allow_cpu,
        )
        wanted = drafters if lookahead else []
        target_path, named = find_files(pair, target, wanted, fetch, report, on_fetch)
        by_file, notes = options_by_file(target_path, [*named, *(drafters or ())], options)
        cancel = CancelFlag()
        model = load_model(target_path, by_file[target_path], cancel, on_load)
        loaded: list[Drafter] = []
        try:
            check_target(model)
            for name in named:
                if name == LOOKUP:
                    loaded.append(LookupDrafter())
                else:
                    path = Path(name)
                    options = by_file[path]
                    loaded.append(load_drafter(model, path, options, cancel, notes, on_load))
            notes += rounding_notes(model, loaded)
            planner, keep = make_planner(
                model, loaded, lookahead, cancel, report, measure_again, on_pass
            )
            return cls(model, loaded, planner=planner, cancel=cancel, notes=notes, on_close=keep)
        except BaseException:
            for drafter in loaded:
                drafter.close()
            model.close()
            raise

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        *,
        max_tokens: int | None = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        logprobs: LogprobsRequest | None = None,
        planner: Planner | None = None,
        begun: int = 0,
        notes: Sequence[str] = (),
        on_begin: Callable[[], None] | None = None,
        on_finish: Callable[[Result], None] | None = None,
    ) -> Generation:
        """Continue a prompt: plain text (no template, no control tokens), or token ids.

        Args:
            prompt: at least one token.
            sampling: how tokens are chosen.
            max_tokens: the longest answer; None goes on until the context is full.
            stop: texts that end the answer and don't belong to it.
            logprobs: log-probabilities to keep with each token of the result.
            planner: decides on drafts instead of the runtime's own, for this answer; a target that
                can't speculate drafts nothing all the same.
            begun: how many of the prompt's last tokens are an answer that this one goes on with: a
                character that they leave unfinished is completed, and comes whole.
            notes: sentences to hand on with the answer.
            on_begin: called when the first chunk is asked for and no other answer runs; an
                EdgespecError that it raises leaves the answer as one that hasn't begun.
            on_finish: called with the result when the answer ends, unless it failed, and before
                another can begin.

        Raises:
            ContextFull: the prompt alone fills the context.
            ConfigError: an empty prompt, an id outside the vocabulary, `max_tokens` below 0, an
                empty stop text, a biased or banned token that isn't there, `begun` beyond the
                prompt, a FixedPlanner of drafters that aren't there.
            ModelError: the runtime is closed.
            Busy: on the first chunk, while another answer runs; this one may be tried again.
        """
        self._check_open()
        ids = self._encode_text(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise ConfigError("the prompt is empty: give at least one token")
        known = self.target.tokenizer.num_tokens
        if not all(0 <= token < known for token in ids):
            raise ConfigError(f"the prompt holds an id outside the vocabulary (0 to {known - 1})")
        if not 0 <= begun <= len(ids):
            raise ConfigError(
                f"the prompt has {len(ids)} tokens, so {begun} of them can't be an answer's: "
                "correct `begun`"
            )
        size = self.context_size
        if len(ids) > size:
            raise ContextFull(
                f"the prompt has {len(ids)} tokens and the context holds {size}: shorten it or "
                "choose a larger context (--ctx-size)"
            )
        if planner is None or not self.target.session.can_rollback:  # else it would fail midway
            planner = self._engine.planner
        if isinstance(planner, AdaptivePlanner | FixedPlanner):
            planner.require_drafters(self.drafters)
        return Generation(
            self._engine,
            ids,
            sampling or SamplingParams(),
            max_tokens=size if max_tokens is None else max_tokens,
            stop=stop,
            logprobs=logprobs,
            planner=planner,
            begun=begun,
            notes=notes,
            on_begin=on_begin,
            on_finish=on_finish,
        )

    def conversation(self, system: str | None = None) -> Conversation:
        """A chat with the model's own template; several may share one runtime."""
        return Conversation(self, system)

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """The prompt that asks for the next answer, as token ids.

        Raises TemplateError for messages that the chat template refuses, and ModelError where the
        runtime is closed.
        """
        self._check_open()
        return encode_chat(self.target.tokenizer, self._template, messages)

    @property
    def costs(self) -> Costs | None:
        """The measured costs that the planner goes by; None where it measures nothing."""
        planner = self._engine.planner
        return planner.costs if isinstance(planner, AdaptivePlanner) else None

    def status(self) -> PlannerStatus:
        """What its planner is doing: drafter, lookahead or parked and why, gain over plain.

        Of answers that were given a planner of their own it says nothing.
        """
        return self._engine.planner.status()

    @property
    def context_size(self) -> int:
        """Tokens the target's cache holds."""
        return self.target.session.context_size

    @property
    def context_used(self) -> int:
        """Tokens in the target's cache."""
        return self.target.session.length

    def cancel(self) -> None:
        """Stop the running answer, from any thread; see `Generation.cancel`."""
        answer = self._engine.answer
        running = answer() if answer is not None else None
        if running is not None:
            running.cancel()

    def close(self) -> None:
        """Stop what runs and free the models.

        In a signal handler that came in the middle of an answer, or of reading the vocabulary, they
        are freed as that ends. Where another thread is just dropping its answer, that thread frees
        them, slightly after this returned.
        """
        engine = self._engine
        engine.on_idle = self._free_idle
        engine.closed = True
        while (answer := engine.answer) is not None:
            running = answer()
            if running is not None:
                running.close()
            if engine.answer is answer:  # its code was interrupted by this, or is just dropping it
                return
        self._free_idle()

    def _free_idle(self) -> None:
        """Free the models, unless an answer has them: then it comes here as it lets go."""
        if self._engine.answer is None:
            call_holding(self._freeing, self._free)

    def _free(self) -> None:
        # Once more at every later close: Ctrl+C may have come in the middle.
        with ExitStack() as closing:  # closes the others where one fails to
            closing.callback(self.target.close)
            for drafter in self.drafters.values():
                closing.callback(drafter.close)
            if self._first.acquire(blocking=False):
                self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._engine.closed:
            raise ModelError("this runtime is closed: open another")

    def _encode_text(self, text: str) -> list[int]:
        tokenizer = self.target.tokenizer
        bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        return [*bos, *tokenizer.encode(text, at_start=True)]

    def _chat_template(self) -> ChatTemplate:
        tokenizer = self.target.tokenizer
        source = self.target.template
        if source is None:
            source = fallback_template(tokenizer)
            form = "ChatML" if source == FALLBACK_TEMPLATE else "a plain transcript"
            self.notes.append(
                f"{self.target.name} brings no chat template, so {form} is used; "
                "a model that wasn't made for chat may ramble"
            )
        return ChatTemplate(source, bos_token=tokenizer.bos_text, eos_token=tokenizer.eos_text)
