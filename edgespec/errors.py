"""Every failure edgespec foresees, as one tree; each message is a sentence a person can act on.

    EdgespecError
    ├── ConfigError            a setting or option that can't be used
    │   └── RegistryError      models.toml or a models file of the user's
    ├── FetchError             a source that can't be had, or isn't what it should be
    │   └── HashMismatch       the bytes are not the ones the registry names
    ├── ModelError             a model file or a forward pass
    │   ├── ModelFormatError   not a model file, or a damaged one
    │   ├── IncompatiblePair   target and drafter don't share their tokens
    │   ├── RollbackError      this model can't forget a part of its cache
    │   └── NumericalError     logits that hold NaN or +inf
    │       └── NothingLeft    no token to choose from
    ├── ExportError            a checkpoint that can't become a model file, or not faithfully
    ├── TemplateError          a chat template that can't be rendered, or takes too much
    ├── ContextFull            the text doesn't fit the context
    ├── Busy                   this runtime is in the middle of another answer
    └── Cancelled              the caller asked to stop

Invariant: nothing else crosses the public API for a failure that bad input can cause.
"""

from __future__ import annotations


class EdgespecError(Exception):
    """The root: catch this to catch every failure edgespec foresees."""


class ConfigError(EdgespecError):
    """A setting or option that can't be used as given."""


class RegistryError(ConfigError):
    """A models file with an unknown key, a missing one, or a value of the wrong kind."""


class FetchError(EdgespecError):
    """A model source that can't be had: offline, missing, refused, or out of disk."""


class HashMismatch(FetchError):
    """What was fetched is not what the registry names; nothing is left behind."""


class ModelError(EdgespecError):
    """A model that can't be loaded, or a forward pass that failed."""


class ModelFormatError(ModelError):
    """Not a model file, or a damaged one."""


class IncompatiblePair(ModelError):
    """Target and drafter don't mean the same text by the same token id."""


class RollbackError(ModelError):
    """The model's cache can't be cut back to the asked length."""


class NumericalError(ModelError):
    """Logits that hold NaN or +inf, or no token to choose from."""


class NothingLeft(NumericalError):
    """A row in which every token is banned or -inf."""


class ExportError(EdgespecError):
    """A checkpoint that can't be exported, or an exported file that isn't the same model."""


class TemplateError(EdgespecError):
    """A chat template that can't be rendered, or that takes too much time or space."""


class ContextFull(EdgespecError):
    """The tokens don't fit the context."""


class Busy(EdgespecError):
    """The runtime is in the middle of another answer, of this thread or another."""


class Cancelled(EdgespecError):
    """The caller asked to stop; what was committed before stays valid."""
