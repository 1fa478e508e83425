"""What the processor's own counters say of its energy.

Invariant: joules only ever add up, whenever a counter begins again; None where they aren't told.
"""

from __future__ import annotations

from pathlib import Path


class EnergyMeter:
    """The processor packages' energy since it was made (Linux: powercap's RAPL counters).

    Most systems let only the superuser read them, and other systems have no such file at all.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        # intel-rapl:0 is a package (AMD's too); intel-rapl:0:0 a part of it, counted already.
        folder = root / "sys/class/powercap"
        zones = sorted(folder.glob("intel-rapl:*")) if folder.is_dir() else []
        self._zones = [
            zone for zone in zones
            if zone.name.count(":") == 1 and _text_of(zone / "name").startswith("package")
        ]  # fmt: skip
        self._last = {zone: _number_in(zone / "energy_uj") for zone in self._zones}
        self._joules = 0.0

    def joules(self) -> float | None:
        """Joules since the meter was made; None where they aren't told."""
        if not self._zones or None in self._last.values():
            return None
        for zone, last in self._last.items():
            now = _number_in(zone / "energy_uj")
            if now is None or last is None:
                return None
            # A counter that is smaller than before has begun again.
            around = 0 if now >= last else _number_in(zone / "max_energy_range_uj") or 0
            self._joules += max(0, now - last + around) / 1e6
            self._last[zone] = now
        return self._joules


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _number_in(file: Path) -> int | None:
    text = _text_of(file)
    return int(text) if text.isdigit() else None
