"""Makes the README's pictures from the chat itself, as its tests run it; so they can't rot.

python docs/pictures.py            writes docs/chat.svg, docs/chat-tokens.svg, docs/chat-light.svg
python docs/pictures.py --check    fails where a picture is missing or would change
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from tui_fakes import Script, Stage, say, settled, stage  # noqa: E402

from edgespec.platform import memory  # noqa: E402
from edgespec.tui.messages import Preferences  # noqa: E402

QUESTION = "Why is speculative decoding exact? Show it in a few lines of Python."
ANSWER = """\
Speculative decoding is exact because a draft token only ever *stands or falls by the target's own
distribution*:

1. The drafter proposes `x` with probability `draft_probs[x]`.
2. The target accepts it with `min(1, target_probs[x] / draft_probs[x])`.
3. At the first rejection a token is **recovered** from what the drafts left over.

```python
def verify(x, draft_probs, target_probs, rng):
    if rng.random() < target_probs[x] / draft_probs[x]:
        return x, "accepted"
    # what the draft left over, normalised
    rest = (target_probs - draft_probs).clip(0)
    return rng.choice(len(rest), p=rest / rest.sum()), "recovered"
```

Summed over both cases, every token comes with its `target_probs`, whatever the drafter guesses.
"""

PICTURES = {
    "chat": Preferences(panel=True),
    "chat-tokens": Preferences(tokens=True),
    "chat-light": Preferences(panel=True, theme="edgespec-light"),
}


async def draw(s: Stage, size: tuple[int, int]) -> str:
    """The screen after one answer, as SVG."""
    async with s.app.run_test(size=size) as pilot:
        await settled(pilot)
        await say(pilot, QUESTION)
        await settled(pilot)
        if s.app.preferences.tokens:
            await pilot.press("tab", *["left"] * 21)
            await pilot.pause()
        svg = s.app.export_screenshot(title="edgespec chat")
    s.app.bridge.close(5)
    # Textual numbers the picture's classes by chance.
    return re.sub(r"terminal-\d+", "terminal", svg)


def main() -> int:
    """Write the pictures, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    os.environ.pop("NO_COLOR", None)
    memory.resident_memory = lambda: 412_000_000
    stale = []
    for name, preferences in PICTURES.items():
        script = Script(answers=[ANSWER], lengths=(1, 4, 6, 3, 1, 5, 2, 8), seconds=0.08)
        svg = asyncio.run(draw(stage(script, preferences=preferences), (116, 34)))
        path = HERE / f"{name}.svg"
        if check and (not path.is_file() or path.read_text(encoding="utf-8") != svg):
            stale.append(path.name)
        elif not check:
            path.write_text(svg, encoding="utf-8")
            print(path)
    if stale:
        print(f"not as the chat looks now: {', '.join(stale)}; run python docs/pictures.py")
    return len(stale)


if __name__ == "__main__":
    sys.exit(main())
