"""From a folder with an ONNX model to a session that was tried out.

Invariant: a device is used only if the model ran on it, beside its cache. Where one that wasn't
named, or that the CPU may stand in for, fails at that, the CPU takes over and the user is told why.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgespec import narrow
from edgespec.backends import LoadOptions
from edgespec.backends.onnx_folder import OnnxFolder, find
from edgespec.backends.onnx_tokenizer import OnnxTokenizer
from edgespec.backends.ort import OrtSession
from edgespec.backends.ort_cache import Cache, GrownCache, InPlaceCache
from edgespec.backends.ort_graph import FLOAT, ROWS, Graph, read_graph
from edgespec.backends.ort_notes import attention_note, copied_note, gpu_names, window_note
from edgespec.backends.ort_probe import RowShape, examine, first_pass
from edgespec.backends.ort_providers import (
    CPU,
    Opened,
    attends_on_cpu,
    on_the_cpu,
    open_session,
)
from edgespec.backends.ort_states import StatefulCache
from edgespec.errors import ConfigError, ModelError, ModelFormatError, NumericalError
from edgespec.platform.huge_pages import huge_pages
from edgespec.session import CancelFlag, Model

# A pool that spins on after a pass would take the CPUs from whatever runs next: sampling, or the
# other model of the pair.
_ENTRIES = {"session.force_spinning_stop": "1"}


def load(path: Path, options: LoadOptions, cancel: CancelFlag) -> Model:
    """Open a folder with an ONNX model, or one .onnx file of it.

    A device on which it fails when it is tried out, as where the cache finds no room beside the
    weights, gives way to the CPU where that may stand in.
    """
    folder = find(path)
    if folder is None:
        raise ModelFormatError(f"{path} holds no ONNX model")
    folder.refuse_pointers()
    context_size, notes = _context(folder, options)

    def opened(device: str) -> Opened:
        return open_session(
            folder.graph,
            folder.name,
            device,
            options.cpu_threads,
            allow_cpu=options.allow_cpu,
            entries=_ENTRIES,
            stopped=cancel.is_set,
        )

    def tried(on_device: Opened, *fallback: str) -> Model:
        # The cache, and what the first passes take, as the weights before them.
        on_cpu = on_device.device.provider == CPU
        with huge_pages(cancel.is_set) if on_cpu else nullcontext():
            return _model(folder, on_device, context_size, [*fallback, *notes], cancel)

    first = opened(options.device)
    try:
        return tried(first)
    except ModelFormatError:
        raise
    except ModelError as error:
        if first.device.provider == CPU:
            raise
        if isinstance(error, NumericalError):  # its weights may be sound elsewhere
            error = NumericalError(f"{folder.name} overflows on {first.device.label}")
        if options.device != "auto" and not options.allow_cpu:
            raise type(error)(f"{error}; or choose --device cpu") from error
        reason = on_the_cpu(folder.name, str(error))
    del first  # and with it its memory on the device
    return tried(opened("cpu"), reason)


def _model(
    folder: OnnxFolder, opened: Opened, context_size: int, notes: list[str], cancel: CancelFlag
) -> Model:
    """The model of an opened graph, once it was tried out. Raises ModelError.

    `notes`: what is to be told beside what shows here.
    """
    name = folder.name
    notes = [*opened.notes, *notes]
    # An input with a default, as our exports choose their rows, is listed apart.
    defaults = [v for v in opened.native.get_overridable_initializers() if v.name == ROWS]
    inputs = [*opened.native.get_inputs(), *defaults]
    graph = read_graph(name, inputs, opened.native.get_outputs())
    rows = first_pass(name, opened.native, graph)
    metadata = opened.native.get_modelmeta().custom_metadata_map
    head = narrow.read_metadata(name, metadata, rows.width)
    tokenizer = OnnxTokenizer(folder, head.vocab_size if head else rows.width)
    told = attends_on_cpu(opened.native, opened.device)
    place = "cpu" if told else opened.device.memory
    # One that stays in place and isn't where attention runs is bound to a copy of what it was.
    floats = place == "cuda" and any(tensor.element == FLOAT for tensor in graph.cache)
    fixed = "cpu" if told is None and floats else place
    session = _open(opened, graph, name, context_size, rows, head, cancel, place, fixed)
    apart = told or (fixed != place and session.cache.in_place)
    try:
        if isinstance(session.cache, GrownCache):
            session.cache.avoid_holes(folder.window)
        findings = examine(session, tokenizer, head.kept if head else slice(None))
        if findings.doubted and opened.device.provider != CPU:
            where = opened.device.label
            raise ModelError(f"{name} doesn't work on {where} ({findings.only_drafts})")
    except BaseException:
        session.close()
        raise
    only_drafts = findings.only_drafts
    if head is not None:
        only_drafts = "its head holds a part of its vocabulary"
    if apart:
        notes.append(attention_note(name, opened.device))
    elif place not in ("cpu", "cuda") and not session.cache.in_place:
        notes.append(copied_note(name, opened.device))
    window = folder.window if session.cache.in_place else None
    if window is not None and window < context_size:
        notes.extend(window_note(name, window, opened.device))
    if not session.can_rollback:
        notes.append(f"{name} can't forget a part of its text, so it runs without speculation")
    details = {
        "device": opened.label,
        "architecture": folder.architecture,
        "fingerprint": folder.fingerprint(),
        "cache": "in place" if session.cache.in_place else "grown",
        "onnxruntime": ort.__version__,
        **({"gpus": names} if (names := gpu_names(opened.device)) else {}),
    }
    return Model(
        name,
        session,
        tokenizer,
        tokenizer.template,
        notes,
        details,
        only_drafts,
        findings.rounding,
    )


def _context(folder: OnnxFolder, options: LoadOptions) -> tuple[int, list[str]]:
    """How many tokens the cache takes, and what the user should know of it. Raises ConfigError."""
    trained, short = folder.context_size, folder.short_context
    usual = min(trained or options.context_cap, options.context_cap)
    size = options.context_size or min(short or usual, usual)
    if size < 1 or (trained and size > trained):
        raise ConfigError(
            f"{folder.name} was made for 1 to {trained} tokens, so its context can't hold {size}: "
            "--ctx-size"
        )
    changes = f"{folder.name} changes its positions behind {short} tokens, which what is cached "
    if short and size > short:
        raise ConfigError(f"{changes}can't follow, so its context can't hold {size}: --ctx-size")
    if size < usual and not options.context_size:
        return size, [f"{changes}can't follow, so its context holds no more"]
    return size, []


def _open(
    opened: Opened,
    graph: Graph,
    name: str,
    context_size: int,
    rows: RowShape,
    head: narrow.NarrowVocabulary | None,
    cancel: CancelFlag,
    place: str,
    fixed: str,
) -> OrtSession:
    """A session with the best cache that the graph works with.

    `place`: the memory it lies in; `fixed`: that of a cache that stays in place.
    """
    mask_type = graph.integers.get("attention_mask", np.dtype(np.int64))

    def session(kind: type[InPlaceCache] | type[GrownCache], size: int) -> OrtSession:
        where = fixed if kind is InPlaceCache else place
        cache: Cache = kind(graph.cache, size, where, mask_type)
        if graph.states:
            if isinstance(cache, GrownCache):
                cache.holes = False  # with nothing that can be taken back they aren't tried
            cache = StatefulCache(cache, graph.states, place)
        return OrtSession(
            opened.native,
            graph,
            name,
            cache,
            context_size=size,
            rows=rows,
            head=head,
            cancel=cancel,
            memory=opened.device.memory,
        )

    trial = session(InPlaceCache, min(16, context_size))
    try:
        trial.forward([0])
    except ModelError:  # it returns a cache of another size than it was given
        return session(GrownCache, context_size)
    finally:
        trial.close()
    return session(InPlaceCache, context_size)
